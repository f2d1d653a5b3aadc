PYTHON ?= python3
EXTRAS := dev,lab,docs,pyg,ray
# Rooms that must each keep 95 % of their lines covered.
GATED  := checks compat storage sets layouts functional losses kernels nn integrations models data lab experiments report cli

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.complete

# Every pip that runs below obeys the pins, the one that fills a build environment included.
export PIP_CONSTRAINT       := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.PHONY: help polygons test lint unit chromium faults fuzz docs check-site bench results verify wheel check-wheel clean
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

polygons: $(STAMP) ## the paper's main claim, trained on the CPU in a minute or two: tables and a page
	$(VENV)/bin/fspool run polygons --preset quick --device cpu

test: lint verify unit check-site check-wheel ## all that must pass: lint, figures, tests with coverage, pages, the wheel

# The stamp is written last, so that an environment whose build was interrupted starts again from nothing.
# A complete but stale one is brought up to date in place.
$(STAMP): pyproject.toml constraints.txt
	if [ -e $@ ]; then rm $@; else $(PYTHON) -m venv --clear $(VENV); fi
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

lint: $(STAMP) ## ruff
	$(PY) -m ruff check .

# One torch thread a worker: the workers share the cores already.
unit: $(STAMP) chromium ## tests with coverage
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --cov --cov-report=
	@for room in $(GATED); do \
	  $(PY) -m coverage report --include="src/fspool/$$room.py,src/fspool/$$room/*" --fail-under=95 || exit 1; \
	done

faults: $(STAMP) ## disturb runs COUNT=200 times: kill, fill the disk, damage files; prints the tally
	$(PY) -m tests.faults --count $(or $(COUNT),200) $(ARGS)

fuzz: $(STAMP) ## feed broken files to every reader for MINUTES=60
	$(PY) -m tests.fuzz --minutes $(or $(MINUTES),60) $(ARGS)

# The tests open the report in a real browser.
chromium:
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y chromium >/dev/null; }

results: $(STAMP) ## make RESULTS.md and the tables of the README again from the files in results/
	$(VENV)/bin/fspool report results --markdown RESULTS.md
	$(PY) docs/pictures.py readme

verify: $(STAMP) ## make every figure that the README, RESULTS.md and the docs quote again, and compare
	$(PY) tools/verify.py

docs: $(STAMP) ## build the pages into docs/_build/html, warnings are errors
	$(PY) -m sphinx -j auto -W --keep-going -b html docs docs/_build/html

check-site: docs chromium ## open every page in a browser: links, errors, a phone's width
	$(PY) -m pytest -q tests/check_site.py

bench: $(STAMP) ## run the benchmarks; choose with ARGS="..."
	$(PY) -m benchmarks $(ARGS)

wheel: $(STAMP) ## build the source archive, and the wheel from it, into dist/
	rm -rf dist
	$(PY) -m build --quiet

check-wheel: wheel ## install the wheel into an empty environment, run the README example
	PYTHON=$(PYTHON) tools/check_wheel.sh

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist docs/_build src/*.egg-info .coverage .pytest_cache .ruff_cache .hypothesis
