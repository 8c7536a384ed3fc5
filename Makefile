# Two commands matter: `make demo` and `make test`. Each creates the environment it needs in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without --no-compile, pip compiles every file of torch and the others before it is asked for: 40 s of one core.
PIP    := $(BIN)/python -m pip install --quiet --no-compile

.PHONY: demo test test-all bench evidence fuzz lint size docs clean

demo: $(VENV)/.bench
	$(BIN)/python -m benchmarks.demo

test: lint
	$(BIN)/python -m pytest -q -n 2 -m 'not slow'

test-all: lint
	$(BIN)/python -m pytest -q -n 2 -m ''

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.e2e
	$(BIN)/python -m benchmarks.overheads
	$(BIN)/python -m benchmarks.boost

# The papers' experiments whose results are missing or older than their code, one after the other; it may be interrupted.
evidence: $(VENV)/.dev
	$(BIN)/python -m benchmarks run
	$(BIN)/python -m benchmarks index

fuzz: $(VENV)/.dev
	$(BIN)/python -m tools.fuzz --count 1000 --jobs 2 --shrink fuzz-failures
	$(BIN)/python -m tools.fuzz --count 200 --jobs 2 --pages --shrink fuzz-failures

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 || $(BIN)/mypy # its workers give up on a machine that is very busy

# The site lies in build/docs; warnings are errors. PyTorch's part of the reference needs nothing of torch.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

size: $(VENV)/.bench
	$(BIN)/python -m tools.size

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What builds the package is installed first and built with in place: a second, isolated copy of it takes longer.
$(VENV)/.build: pyproject.toml | $(BIN)/python
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("$<", "rb"))["build-system"]["requires"], sep="\n")' > $@.txt
	$(PIP) --requirement $@.txt
	touch $@

# The demo needs onnxruntime and openvino to compare with, but not torch, which is ten times their size.
$(VENV)/.bench: $(VENV)/.build
	$(PIP) --no-build-isolation --editable '.[bench]'
	touch $@

# What the demo's installation has compiled ahead is not compiled again.
$(VENV)/.dev: export BURNISH_AHEAD = $(if $(shell find $(VENV)/.bench -newer pyproject.toml 2>/dev/null),0,1)

# One pinned torch keeps the seeded models of benchmarks/networks.py the same everywhere.
$(VENV)/.dev: $(VENV)/.build
	$(PIP) torch==2.13.0
	$(PIP) --no-build-isolation --editable '.[bench,boost,boost-bench,dev,rewrite,serve,torch]'
	touch $(VENV)/.bench $@

$(VENV)/.docs: $(VENV)/.build
	$(PIP) --no-build-isolation --editable '.[boost,docs,serve]'
	touch $@

clean:
	rm -rf fuzz-failures build dist docs/reference burnish/*.bnlib *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis benchmarks/.cache
	find burnish benchmarks tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +
