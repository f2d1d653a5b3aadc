"""The built site in a browser: links, errors, and a phone's width. ``make check-site`` runs this.

It needs ``docs/_build/html``, which ``make docs`` builds, or the folder that FSPOOL_SITE names.
"""

import math
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .browser import Browser

SITE = Path(os.environ.get("FSPOOL_SITE", Path(__file__).parent.parent / "docs/_build/html"))
PAGES = sorted(path.name for path in SITE.glob("*.html"))
PHONE = 390
LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


FIRST_DOT = (
    "document.querySelector('#%s .dot').getAttribute('transform')"
    ".match(/-?[\\d.]+(e-?\\d+)?/g).map(Number)"
)
SEEK = (
    "{ const slider = document.getElementById('slider'); slider.value = %d;"
    " slider.dispatchEvent(new Event('input')) }"
)


class Page(HTMLParser):
    """What a page links to, and where one may link to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.anchors = [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get(LINKS.get(tag)) is not None:
            self.links.append(given[LINKS[tag]])
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}


def broken(name: str, pages: dict[str, Page]) -> list[str]:
    """The links of a page that lead nowhere; those to other sites are not followed."""
    found = []
    for link in pages[name].links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = os.path.normpath(unquote(parts.path) or name)
        if not (SITE / target).is_file():
            found.append(link)
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            found.append(link)
    return found


@pytest.fixture(scope="module")
def pages():
    return {name: Page((SITE / name).read_text()) for name in PAGES}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


def test_the_site_is_there():
    sources = {path.stem for path in (Path(__file__).parent.parent / "docs").glob("*.md")}
    assert sources <= {name.removesuffix(".html") for name in PAGES}, "make docs builds it"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(pages, name):
    assert broken(name, pages) == []


def test_a_broken_link_is_found(pages):
    wrong = ["nowhere.html", "api.html#nothing", "#nothing", "_static/none.svg"]
    right = ["api.html#fspool.FSPool", "#", "https://example.org/", "_static/idea.svg"]
    page = Page("".join(f'<a href="{link}">x</a>' for link in wrong + right))
    assert broken("index.html", pages | {"index.html": page}) == wrong


@pytest.mark.parametrize("width", [PHONE, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_errors_and_fits(browser, name, width):
    for heard in (browser.errors, browser.console, browser.requests):
        heard.clear()
    browser.open(SITE / name, width=width)
    wide = browser.run("document.documentElement.scrollWidth")
    assert wide <= width, f"{name} is {wide} pixels wide"
    assert (browser.errors, browser.console) == ([], [])
    outside = [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []  # the site needs no other
    assert browser.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


@pytest.mark.parametrize("width", [PHONE, 1200])
def test_the_polygon_turns(browser, width):
    """After a quarter turn FSPool's outputs are one corner on; those of the list are not."""
    browser.open(SITE / "responsibility.html", width=width)
    steps = int(browser.run("document.getElementById('slider').max")) + 1
    places = []
    for quarter in range(2):
        browser.run(SEEK % (quarter * steps // 4))
        assert browser.run("document.getElementById('angle').textContent") == f"{90 * quarter}.0°"
        places.append([browser.run(FIRST_DOT % side) for side in ("left", "right")])
    moved = [math.dist(before, after) for before, after in zip(*places, strict=True)]
    assert moved[0] < 0.3  # the same set, so the same list
    assert abs(moved[1] - 2**0.5) < 0.1  # from one corner of the square to the next
