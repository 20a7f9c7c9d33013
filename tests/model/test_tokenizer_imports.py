"""A tokenizer is loaded without the code of models, which takes seconds to import: every job that encodes text would pay."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_corpus_is_encoded_without_modeling_code(checkpoints):
    code = (
        "import sys; import ffkv.corpus.step; from ffkv.model.checkpoint.tokenizer import load_tokenizer; "
        f"load_tokenizer({str(checkpoints('gpt2'))!r})('a text'); "
        "sys.exit('transformers.modeling_utils' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
