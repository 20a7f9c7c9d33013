"""What tests of hostile input share."""

from pathlib import Path

import pytest

from ffkv.embedded.tokenizer import train_tokenizer
from ffkv.model.anatomy import Anatomy, write_anatomy


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory) -> Path:
    """A model stage's folder with a byte-level tokenizer: whatever the text, its tokens spell it."""
    folder = tmp_path_factory.mktemp("byte") / "model"
    folder.mkdir()
    train_tokenizer(["the cat sat on the mat"], 300, 64).save_pretrained(folder)
    anatomy = Anatomy(
        checkpoint="bytes", revision="main", dtype="float32", trust_remote_code=False, architecture="None",
        activation="relu", parameters=0, model_hash="0", tokenizer_hash="0", vocabulary=300, context=64, width=8,
        last_block="", returns=0, layers=[], errors={}, versions={},
    )  # fmt: skip
    write_anatomy(folder, anatomy)
    return folder
