# Everything runs in .venv, which make creates by itself and redoes when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two OpenMP threads beside other work are far slower than one, so the parallel test runner gets one thread a worker.
TEST_THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: setup browser demo test check docs format lint types clean environment-litert environment-executorch

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

# The page of `gf serve` is tested in Chromium; without a browser these tests are skipped. Debian and Ubuntu, as root.
browser:
	command -v chromium chromium-browser google-chrome || apt-get install -y --no-install-recommends chromium

demo: setup
	$(BIN)/gf demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

test: setup
	$(TEST_THREADS) $(BIN)/pytest -n 2 --dist worksteal

# The site, into site/. Broken links, missing pages and public names without a docstring fail.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types docs test

# Phone runtimes do not install beside our pins: each gets an environment of its own, see docs/export.md.
environment-litert environment-executorch: environment-%:
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r environments/$*.txt -e .

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-litert .venv-executorch build dist site .pytest_cache .mypy_cache .ruff_cache
