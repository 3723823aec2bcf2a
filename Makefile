# Two commands do everything: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint format bench clean
setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: setup  ## Run the main job on a picture.
	$(BIN)/python examples/demo.py

test: setup lint  ## Lint, type-check and run the tests.
	$(BIN)/python -m pytest -n 2

lint: setup  ## Style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite files in the house style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## Print speed and memory next to the reference.
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist
