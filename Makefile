# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACE := llama_default
SIZES ?= 20000 100000
LOWEST := .venv-lowest
OF_FIGURES := tests/rules tests/test_real_traces.py tests/test_stats_oracle.py tests/test_calls.py tests/test_pages.py

.PHONY: demo test lint lowest bench bench-compare clean

# The main job on a real recording: a llama.cpp server that saved 90 MB of state for each of 16 requests.
demo: $(VENV)/.run
	@mkdir -p out
	@$(BIN)/python -c "import lzma, shutil; shutil.copyfileobj(lzma.open('tests/fixtures/$(TRACE).sqlite.xz'), open('out/$(TRACE).sqlite', 'wb'))"
	$(BIN)/nsysparse analyze out/$(TRACE).sqlite -o out/$(TRACE).html --requests 16 --force

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The figures once more, with the oldest libraries that pyproject.toml allows.
lowest: $(LOWEST)/.dev
	$(LOWEST)/bin/python -m pytest -n auto $(OF_FIGURES)

# Whole commands as processes on generated recordings; SIZES="1000000 5000000 20000000" for the real thing.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py $(SIZES)

bench-compare: $(VENV)/.dev
	$(BIN)/python benchmarks/compare.py

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.run

$(LOWEST)/.dev: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -c "from pip._vendor import tomli as tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" | sed 's/>=/==/' > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) out dist .mypy_cache .ruff_cache
