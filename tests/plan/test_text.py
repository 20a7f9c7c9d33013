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
from ffkv.plan import facts
from ffkv.plan.facts import inspect_run
from ffkv.workflow.jobs import Job

SENTENCES = random_sentences(3, 3000)
TOKENS = sum(len(sentence.split()) for sentence in SENTENCES)


@pytest.fixture
def splits(checkpoints, tmp_path, monkeypatch):
    """The splits of a corpus that lies in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "resolve_dataset", lambda corpus: Commit("dataset", corpus.dataset, "main", "a" * 40))
    monkeypatch.setattr(facts, "measure_missing", lambda *_: {})

    def measure(tokens=None, **corpus):
        model = {"checkpoint": str(checkpoints("gpt2"))}
        corpus = {"dataset": "files", "splitter": "line", "deduplicate": False, **corpus}
        commit = Job("resolve_commit", "mine", 1, "", [], ["commits/dataset.json"], False)
        jobs = {} if corpus["dataset"] == "files" else {"resolve_commit": [commit]}
        return inspect_run(Settings(model=model, corpus=corpus), jobs, tokens).text

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
    monkeypatch.setattr(facts, "SAMPLE_BYTES", 40_000)
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
    found = splits(train=["text.txt"], limit=300, validation_share=0.01)
    assert found["train"].documents == 300
    assert 10 < found["validation"].documents < 60  # as many as there are


def test_the_hub_is_asked_for_its_size_alone(splits, monkeypatch):
    monkeypatch.setattr(facts, "describe_split", lambda *_: HubSplit(1000, 9_000_000, []))
    found = splits(dataset="some/corpus")
    assert found["train"].text_bytes == pytest.approx(9_000_000)
    assert found["validation"].tokens == pytest.approx(found["train"].tokens / 9)
    part = splits(dataset="some/corpus", limit=100)
    assert part["train"].tokens == pytest.approx(found["train"].tokens / 10)
    assert part["validation"].documents == 100


def test_what_the_hub_does_not_say_is_to_be_given(splits, monkeypatch):
    monkeypatch.setattr(facts, "describe_split", lambda *_: HubSplit(None, None, []))
    with pytest.raises(UserError, match="Pass --train-tokens"):
        splits(dataset="some/corpus")
    found = splits(9 * 10**7, dataset="some/corpus")
    assert (found["train"].tokens, found["validation"].tokens) == pytest.approx((9 * 10**7, 10**7))


def test_given_tokens_hide_no_missing_data_set(splits, monkeypatch):
    def refuse(*_):
        raise UserError("The corpus nobody/nothing has no split train.")

    monkeypatch.setattr(facts, "describe_split", refuse)
    with pytest.raises(UserError, match="nobody/nothing has no split"):
        splits(10**8, dataset="nobody/nothing")


def test_text_of_a_package_is_found(splits, tmp_path, monkeypatch):
    (tmp_path / "some_texts").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(facts, "SAMPLE_BYTES", 40_000)
    FORMS["text.txt"](tmp_path / "some_texts/text.txt")
    found = splits(train=["package:some_texts/*.txt"], validation=["package:some_texts/text.txt"])["train"]
    assert found.source.startswith("estimated from") and found.tokens == pytest.approx(TOKENS, rel=0.15)


def test_of_each_document_only_the_sentences_that_are_read_count(splits, tmp_path):
    FORMS["text.txt"](tmp_path / "text.txt")
    settings = {"txt_document": "file", "train": ["text.txt"], "validation": ["text.txt"], "sentences_per_document": 7}
    found = splits(**settings)["train"]
    assert (found.sentences, found.documents) == (7, 1)


def test_a_shorter_context_makes_more_sentences(splits, tmp_path):
    FORMS["text.txt"](tmp_path / "text.txt")
    found = splits(train=["text.txt"], validation=["text.txt"], context=6)["train"]
    parts = [len(sentence.split()) % 5 for sentence in SENTENCES]  # the last window; one of a single token is left out
    assert found.tokens == TOKENS - parts.count(1)
    assert found.sentences == sum(len(s.split()) // 5 + (part > 1) for s, part in zip(SENTENCES, parts, strict=True))


def test_a_missing_file_is_named(splits):
    with pytest.raises(UserError, match=r"no/such/\*.txt"):
        splits(train=["no/such/*.txt"])
