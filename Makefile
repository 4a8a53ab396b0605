# make demo    a simulated town: train, evaluate, forecast, report (about two minutes after set-up)
# make test    everything that must hold (about five minutes after set-up)
# make docs    the documentation as a site in site/, readable without internet
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test types unit test-slow docs format clean

demo: .venv/installed
	$(BIN)/frigate demo -o demo

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --jobs 2 types unit

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv demo build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
