"""What tests of the passes share."""

import pytest
from support import random_sentences

from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer


@pytest.fixture
def corpus_for(proven, write_corpus):
    """Writes sentences, random ones or given, as a corpus of a kind of model; returns its path."""

    def write(kind: str, count: int = 20, sentences=None, seed: int = 4, name: str = "corpus.h5", **attributes):
        attributes = {"tokenizer_hash": read_anatomy(proven(kind)).tokenizer_hash, **attributes}
        sentences = sentences or random_sentences(seed, count)
        return write_corpus(sentences, load_tokenizer(proven(kind)), name, **attributes)

    return write


@pytest.fixture
def model_and_corpus(proven, corpus_for):
    """Loads a kind of model, and such a corpus."""
    return lambda kind, *count, **more: (load(proven(kind), "cpu"), read_corpus(corpus_for(kind, *count, **more)))
