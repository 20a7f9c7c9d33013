"""How large a corpus is: counted, read, from its first documents, from the hub, or given."""

import gzip
import json

import pandas as pd
import pytest
from support import random_sentences

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.settings import Settings
from ffkv.corpus.hub_rows import HubSplit
from ffkv.plan import text
from ffkv.plan.shape import load_model_form
from ffkv.plan.text import measure_text

SENTENCES = random_sentences(3, 3000)
TOKENS = sum(len(sentence.split()) for sentence in SENTENCES)


@pytest.fixture
def splits(checkpoints, tmp_path, monkeypatch):
    """The splits of a corpus that lies in the working directory."""
    monkeypatch.chdir(tmp_path)

    def measure(tokens=None, written=None, **corpus):
        model = {"checkpoint": str(checkpoints("gpt2"))}
        settings = Settings(
            model=model, corpus={"dataset": "files", "splitter": "line", "deduplicate": False, **corpus}
        )
        commits = {"dataset": Commit("dataset", settings.corpus.dataset, "main", "a" * 40)}
        return measure_text(settings, load_model_form(settings), written or {}, tokens or {}, commits)[0]

    return measure


def parquet(path):
    pd.DataFrame({"text": SENTENCES}).to_parquet(path, index=False, row_group_size=500)


FORMS = {
    "text.txt": lambda path: path.write_text("\n".join(SENTENCES)),
    "text.jsonl": lambda path: path.write_text("\n".join(json.dumps({"n": 1, "text": text}) for text in SENTENCES)),
    "text.csv": lambda path: pd.DataFrame({"n": range(3000), "text": SENTENCES}).to_csv(path, index=False),
    "text.parquet": parquet,
}


def test_a_small_corpus_is_counted(splits, tmp_path):
    FORMS["text.txt"](tmp_path / "text.txt")
    found = splits(train=["text.txt"], validation=["text.txt"])
    assert {split.source for split in found.values()} == {"counted"}
    assert {(split.tokens, split.sentences) for split in found.values()} == {(TOKENS, 3000)}


@pytest.mark.parametrize("name", FORMS)
def test_a_large_corpus_is_estimated_from_its_first_documents(splits, tmp_path, monkeypatch, name):
    monkeypatch.setattr(text, "SAMPLE_BYTES", 40_000)
    FORMS[name](tmp_path / name)
    found = splits(train=[name], validation_share=0.25)
    assert found["train"].source.startswith("estimated from ")
    assert found["train"].tokens == pytest.approx(0.75 * TOKENS, rel=0.3)
    assert found["validation"].tokens == pytest.approx(found["train"].tokens / 3)


@pytest.mark.slow
def test_a_packed_file_is_estimated_by_how_far_it_is_read(splits, tmp_path, monkeypatch):
    many = random_sentences(5, 60_000)
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress("\n".join(many).encode()))
    found = splits(train=["text.txt.gz"], validation=["text.txt.gz"])
    assert found["train"].tokens == pytest.approx(sum(len(sentence.split()) for sentence in many), rel=0.5)


def test_a_limit_is_a_number_of_documents(splits, tmp_path):
    FORMS["text.txt"](tmp_path / "text.txt")
    assert splits(train=["text.txt"], limit=300)["train"].documents == 300


def test_the_hub_is_asked_for_its_size_alone(splits, monkeypatch):
    monkeypatch.setattr(text, "describe_split", lambda *_: HubSplit(1000, 9_000_000, []))
    found = splits(dataset="some/corpus")
    assert found["train"].text_bytes == pytest.approx(0.9 * 9_000_000)
    assert found["validation"].tokens == pytest.approx(found["train"].tokens / 9)


def test_what_the_hub_does_not_say_is_to_be_given(splits, monkeypatch):
    monkeypatch.setattr(text, "describe_split", lambda *_: HubSplit(None, None, []))
    with pytest.raises(UserError, match="Pass --train-tokens and --validation-tokens"):
        splits(dataset="some/corpus")
    found = splits({"train": 10**8, "validation": 10**5}, dataset="some/corpus")
    assert (found["train"].tokens, found["validation"].tokens) == pytest.approx((10**8, 10**5))


def test_given_tokens_hide_no_missing_data_set(splits, monkeypatch):
    def refuse(*_):
        raise UserError("The corpus nobody/nothing has no split train.")

    monkeypatch.setattr(text, "describe_split", refuse)
    with pytest.raises(UserError, match="nobody/nothing has no split"):
        splits({"train": 10**8, "validation": 10**5}, dataset="nobody/nothing")


def test_a_shorter_context_makes_more_sentences(splits, tmp_path):
    FORMS["text.txt"](tmp_path / "text.txt")
    found = splits(train=["text.txt"], validation=["text.txt"], context=6)["train"]
    parts = [len(sentence.split()) % 5 for sentence in SENTENCES]  # the last window; one of a single token is left out
    assert found.tokens == TOKENS - parts.count(1)
    assert found.sentences == sum(len(s.split()) // 5 + (part > 1) for s, part in zip(SENTENCES, parts, strict=True))


def test_a_missing_file_is_named(splits):
    with pytest.raises(UserError, match=r"no/such/\*.txt"):
        splits(train=["no/such/*.txt"])
