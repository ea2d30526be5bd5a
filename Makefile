# make test      makes the environment, then runs every check: lint, types, imports, tests (benchmarks on tiny inputs too)
# make demo      makes the environment, then organizes two trained networks: open runs/demo-vit/report.html
# make lint      formatting, types and who may import whom
# make docs      runs every code block of the documents, then builds the site: open docs/_build/html/index.html
# make docs-fresh  the same from nothing: every example runs again
# make bench     the benchmarks behind docs/performance.md
# make sweep     captures tiny models of every family of transformers, and writes docs/families.md
# make findings  writes the verdicts of docs/findings.md and the tables of docs/findings_tables.md
# make similarities  writes the tables of docs/similarities.md
# make tokens    writes the tables of docs/token_tensor.md, and its sentences in docs/findings.md
# make fuzz      organizes 10,000 drawn arrays and compares them with literal definitions
# make kills     kills 50 runs at random moments and finishes them, bit for bit
# make flips     flips 60 bits in each kind of file of a run, and counts those that are read as data
# make mutants   breaks the numerical core in a few hundred ways and counts the breaks that no test notices
# make clean     removes the environment and all caches
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
STAMP  := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed

.PHONY: findings similarities tokens sweep test lint demo docs docs-fresh bench fuzz kills flips mutants clean
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(STAMP)
	$(BIN)/headtree demo

# Examples whose script has not changed are not run again, and runs in docs/gallery/runs are read.
docs: $(DOCS_STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/test_documents.py tests/test_docstrings.py tests/test_links.py
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

docs-fresh:
	rm -rf docs/_build docs/auto_gallery docs/reference docs/gallery/runs
	$(MAKE) docs

# The paper's claims on the bundled networks and a pretrained BERT; takes ten to fifteen minutes.
findings: $(STAMP)
	$(BIN)/headtree reproduce --networks bundled,minilm --sensitivity -o runs/findings \
		--into docs/findings.md --into docs/findings_tables.md

# Every similarity of heads on four networks; half an hour. PICTURES=FOLDER, with CIFAR-10, adds the ViT's function.
similarities: $(STAMP)
	$(BIN)/headtree reproduce --similarities $(if $(PICTURES),--pictures $(PICTURES)) -o runs/similarities --into docs/similarities.md

# Which method knows which tokens matter, on three networks; ten minutes.
tokens: $(STAMP)
	$(BIN)/headtree reproduce --tokens --inputs 12 -o runs/tokens --into docs/token_tensor.md --into docs/findings.md

# Random weights, no downloads; takes five to ten minutes.
sweep: $(STAMP)
	$(BIN)/python -m tools.sweep

fuzz: $(STAMP)
	$(BIN)/python -m tools.fuzz --jobs $(WORKERS)

kills: $(STAMP)
	$(BIN)/python -m tests.pipeline.interrupted 50 --draw --jobs $(WORKERS)

flips: $(STAMP)
	$(BIN)/python -m tests.runs.flips

# Every third of about a thousand; SHARE=1 tries all of them, SHARE=20 every twentieth.
mutants: $(STAMP)
	$(BIN)/python -m tools.mutants $(if $(SHARE),--share $(SHARE))

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(STAMP): pyproject.toml packages/headtree-networks/pyproject.toml constraints.txt tests/requirements-no-deps.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable packages/headtree-networks --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/requirements-no-deps.txt
	$(BIN)/python -m headtree.pipeline.compile_kernels
	touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/_build docs/auto_gallery docs/reference
