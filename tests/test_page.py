"""The page in a real browser: it turns, it jumps where it has to, and it needs nobody."""

from __future__ import annotations

import math
import shutil

import pytest

from fspool import report

from .browser import Browser
from .folders import write_all

# Where the dots of a side stand, as [x, y] from the centre, y downwards.
DOTS = """[...document.querySelectorAll('#{side} .dot')].map(dot => {{
  const {{e, f}} = dot.transform.baseVal.consolidate().matrix; return [e, f]; }})"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    report.write_page(report.collect(write_all(out / "runs")), out / "report.html")
    return out / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as opened:
        yield opened


@pytest.fixture
def quiet(browser, made):
    """A browser in which nothing goes wrong."""
    yield browser
    assert browser.errors == []
    assert browser.console == []
    assert set(browser.requests) == {made.resolve().as_uri()}  # the file itself, and no network


@pytest.fixture
def shown(quiet, made):
    quiet.open(made)
    return quiet


def dots(browser, side: str) -> list[list[float]]:
    return browser.run(DOTS.format(side=side))


def numbers(browser, side: str) -> str:
    return browser.run(f"document.querySelector('#{side} .numbers').textContent")


def seek(browser, index: int) -> None:
    """As a drag of the slider does."""
    browser.run(
        f"slider.value = {index}; slider.dispatchEvent(new Event('input', {{bubbles: true}}))"
    )


def choose(browser, name: str, value: str) -> None:
    browser.run(f"{name}.value = '{value}'; {name}.dispatchEvent(new Event('change'))")


def corner(n: int, slot: int, degrees: float) -> list[float]:
    angle = 2 * math.pi * slot / n + math.radians(degrees)
    return [math.sin(angle), -math.cos(angle)]


def test_the_square_is_shown_first(shown):
    assert shown.run("size.value") == "4"
    assert shown.run("slider.value") == "0"
    assert [len(dots(shown, side)) for side in ("left", "right")] == [4, 4]
    assert shown.run("document.querySelector('#left h3').textContent") == "MLP + Chamfer"
    assert shown.run("document.querySelector('#right h3').textContent") == "FSPool & FSUnpool"
    top = shown.run("document.getElementById('turn').getBoundingClientRect().top")
    assert top < shown.run("document.querySelector('table').getBoundingClientRect().top")


def test_arrow_keys_turn_the_square(shown):
    before = dots(shown, "right"), numbers(shown, "left"), numbers(shown, "right")
    shown.run("slider.focus()")
    shown.press("ArrowRight", 60)
    assert shown.run("slider.value") == "60"
    assert shown.run("angle.textContent") == "30.0°"
    assert shown.run("slider.getAttribute('aria-valuetext')") == "30.0 degrees"
    after = dots(shown, "right"), numbers(shown, "left"), numbers(shown, "right")
    assert before[0] != after[0]
    assert before[1] != after[1]  # it had just jumped at 0
    for slot, place in enumerate(after[0]):
        assert place == pytest.approx(corner(4, slot, 30), abs=1e-3)


def test_the_list_jumps_and_fspool_does_not(shown):
    seek(shown, 179)
    before = dots(shown, "left"), dots(shown, "right")
    seek(shown, 180)
    after = dots(shown, "left"), dots(shown, "right")
    way = [math.dist(a, b) for a, b in zip(before[0], after[0], strict=True)]
    assert way == pytest.approx([2 * math.sin(math.radians(89.5 / 2))] * 4, abs=1e-3)
    way = [math.dist(a, b) for a, b in zip(before[1], after[1], strict=True)]
    assert way == pytest.approx([math.radians(0.5)] * 4, abs=1e-3)
    assert "speed 161.3 ×" in numbers(shown, "left")
    assert "speed 1.00 ×" in numbers(shown, "right")
    trail = "document.querySelector('#{} .trail').getTotalLength()"
    assert shown.run(trail.format("left")) > 1.4 > 0.2 > shown.run(trail.format("right"))


def test_other_sizes_and_baselines(shown):
    seek(shown, 60)
    options = "[...{}.options].map(option => option.textContent)"
    assert shown.run(options.format("size")) == ["2", "4", "16"]
    assert shown.run(options.format("baseline")) == ["MLP + Chamfer", "MLP + Hungarian"]
    choose(shown, "baseline", "mlp-assignment")
    assert shown.run("document.querySelector('#left h3').textContent") == "MLP + Hungarian"
    choose(shown, "size", "16")
    assert len(dots(shown, "left")) == len(dots(shown, "right")) == 16
    assert shown.run("baseline.value") == "mlp-assignment"  # a choice stays
    assert shown.run("slider.value") == "60"
    assert dots(shown, "right")[3] == pytest.approx(corner(16, 3, 30), abs=1e-3)


def test_a_click_into_the_strip_goes_there(shown):
    box = "document.querySelector('#right .strip').getBoundingClientRect().{}"
    shown.run("document.querySelector('#right .strip').scrollIntoView()")
    left, top = shown.run(box.format("left")), shown.run(box.format("top"))
    shown.click(left + shown.run(box.format("width")) / 2, top + 20)
    assert shown.run("Math.abs(slider.value - 350)") < 15


def test_play_and_pause(shown):
    shown.run("play.focus()")
    shown.press(" ")
    assert shown.run("play.getAttribute('aria-pressed')") == "true"
    shown.until("Number(slider.value) > 10")
    shown.press(" ")
    value = shown.run("slider.value")
    assert shown.run("play.getAttribute('aria-pressed')") == "false"
    shown.run("new Promise(done => setTimeout(done, 100))")
    assert shown.run("slider.value") == value


def test_reduced_motion_moves_in_steps(quiet, made):
    quiet.open(made, prefers_reduced_motion="reduce")
    quiet.run("play.click()")
    quiet.until("slider.value === '10'")  # 5 degrees at once
    quiet.run("play.click()")


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_looked_at(quiet, made, tmp_path, width, scheme):
    quiet.open(made, width=width, prefers_color_scheme=scheme)
    seek(quiet, 200)
    assert quiet.run("document.documentElement.scrollWidth") <= width  # only tables scroll
    background = quiet.run("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(252, 252, 251)", "dark": "rgb(18, 23, 28)"}[scheme]
    quiet.screenshot(tmp_path / "page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000  # there is something on it


def test_a_missing_browser_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(AssertionError, match="Chromium is missing; apt-get install chromium."):
        Browser(tmp_path / "profile")
