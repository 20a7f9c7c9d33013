#!/bin/bash
# Snakemake runs this in the environment that it made of ffkv.yaml (--sdm conda). FFKV_SOURCE: set by the workflow.
# Editable, so that the source beside the Snakefile is what runs; its packages are already there.
set -euo pipefail
pip install --no-deps --editable "$FFKV_SOURCE"
