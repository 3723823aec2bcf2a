# Two commands do everything: `make demo` and `make test`. Both set up what they need. `make help` lists the others.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help setup demo test lint format bench eval fuzz peer-tests docs docs-serve dist clean
help:  ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY)  ## Make the environment in .venv.

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: setup  ## Run all people tasks on two images and draw the results on one sheet: out/demo/sheet.png.
	$(BIN)/vitruvian demo --out out/demo

# Tests start hundreds of processes: each would compile the package again if the environment forbids to write bytecode.
test: setup lint  ## Lint, type-check and run the tests.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: setup  ## Style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Rewrite files in the style of the project.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference's processors need torchvision, of which there are CUDA builds only: an environment of its own, where
# torchvision comes without its dependencies (benchmarks/common/reference.py says why that is enough).
BENCH := .venv-bench
$(BENCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BENCH)/bin/python -m pip install --quiet --no-deps torchvision==0.28.0
	touch $(BENCH)/.ready

bench: $(BENCH)/.ready  ## Print speed and memory next to the reference; ARGS="image_folder long_video" runs those alone.
	$(BENCH)/bin/python benchmarks/run.py $(ARGS)

eval: setup  ## Evaluate the built-in model against its targets; ARGS="--model FOLDER" scores another.
	$(BIN)/python benchmarks/builtin_accuracy.py $(ARGS)

MINUTES ?= 30
KILLS   ?= 500
fuzz: setup  ## Mutated inputs for MINUTES=30 and KILLS=500 killed jobs; what fails is in out/fuzz.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) --kills $(KILLS) $(ARGS)

# The tests of transformers on our classes, from a checkout of it that PEER names. Its source is installed from a copy,
# because pip writes build folders beside setup.py; torchvision comes as in `bench`.
PEER_ENV := .venv-peer
$(PEER_ENV)/.ready: pyproject.toml constraints.txt
	test -f "$(PEER)/src/transformers/__init__.py" || { echo "peer-tests: PEER=path/to/transformers is needed."; exit 2; }
	$(PYTHON) -m venv $(PEER_ENV)
	rm -rf $(PEER_ENV)/reference && mkdir $(PEER_ENV)/reference
	cp -R "$(PEER)/src" "$(PEER)/setup.py" "$(PEER)/pyproject.toml" "$(PEER)/README.md" $(PEER_ENV)/reference
	$(PEER_ENV)/bin/python -m pip install --quiet --upgrade pip
	$(PEER_ENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[train]" \
		$(PEER_ENV)/reference datasets parameterized psutil pytest pytest-timeout pytest-xdist requests
	$(PEER_ENV)/bin/python -m pip install --quiet --no-deps torchvision==0.28.0
	touch $(PEER_ENV)/.ready

peer-tests: $(PEER_ENV)/.ready  ## Run the tests of transformers on our classes: PEER=path/to/its/checkout.
	$(PEER_ENV)/bin/python tools/peer_tests.py "$(PEER)" $(ARGS)

docs: setup  ## Build the documentation site in site/; broken links are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup  ## Show the documentation site at http://127.0.0.1:8000 and build it again after each change.
	$(BIN)/mkdocs serve --watch src

dist: setup  ## Build wheel and source distribution in dist/, install each in a bare environment and run the demo.
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/check_dist.py dist

clean:  ## Remove the environments and what was built.
	rm -rf $(VENV) $(BENCH) $(PEER_ENV) build dist site
