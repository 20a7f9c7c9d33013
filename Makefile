# make report   set up, run config.yaml, write reports/<run>/index.html
# make test     set up, check everything but what follows
# make test-failures   the tests that kill runs, and those on a SLURM cluster of their own (root, and SLURM's packages)
# make install  set up only: .venv, from the pinned lists in envs/
# make slurm    set up, with what submits to a SLURM cluster
# make bench    set up, with the peers in an environment of their own; measure, write docs/benchmarks.md
# make peers    set up .venv-peers: the libraries that ffkv is measured against

PYTHON ?= python3
VENV := .venv
SHELL := /bin/bash
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: report test test-failures lint settings models install slurm peers clean

report: install
	snakemake

test: install lint
	coverage erase
	coverage run -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=30
	coverage combine --quiet
	coverage report --fail-under=90

test-failures: slurm
	pytest -m "cluster or kills"

lint: install
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint

# Writes config.yaml, its schema and the reference page from src/ffkv/settings.py.
settings: install
	ffkv settings

# Writes docs/architectures.csv: every model type of the installed transformers, proven on a tiny model.
models: install
	ffkv models --prove --output docs/architectures.csv

bench: install peers
	python -m benchmarks

install: $(VENV)/installed

$(VENV)/installed: envs/requirements.txt envs/requirements-test.txt envs/constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ffkv needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c envs/constraints.txt -r envs/requirements.txt -r envs/requirements-test.txt
	$(VENV)/bin/pip install --quiet --no-deps -e .
	touch $@

slurm: $(VENV)/slurm

$(VENV)/slurm: $(VENV)/installed envs/requirements-slurm.txt
	$(VENV)/bin/pip install --quiet -c envs/constraints.txt -r envs/requirements-slurm.txt
	touch $@

peers: $(VENV)-peers/installed

$(VENV)-peers/installed: benchmarks/requirements-peers.txt benchmarks/requirements-delphi.txt envs/constraints.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet -c envs/constraints.txt -r benchmarks/requirements-peers.txt
	$(VENV)-peers/bin/pip install --quiet --no-deps -r benchmarks/requirements-delphi.txt
	touch $@

clean:
	rm -rf results reports/*/ .snakemake
