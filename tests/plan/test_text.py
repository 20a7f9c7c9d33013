"""How large a corpus is: counted, read, from its first documents, from the hub, or given."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest
from support import random_sentences, refused

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.branches.settings import Corpus, Settings
from ffkv.corpus.document import Document
from ffkv.corpus.encode import Encoded
from ffkv.corpus.hub_rows import HubSplit
from ffkv.corpus.sources import is_held_out
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
    monkeypatch.setattr(facts, "EVERY", 40)  # of the embedded corpus, to save time

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


def covers(split, tokens: float) -> bool:
    """Whether a number of tokens lies in the interval of a plan, and the interval is not all numbers."""
    return 0 < split.error < 0.3 and abs(split.tokens - tokens) <= split.error * split.tokens


@pytest.mark.parametrize("name", FORMS)
def test_a_corpus_is_estimated_from_documents_that_are_spread_over_it(splits, tmp_path, monkeypatch, name):
    monkeypatch.setattr(facts, "SAMPLE_BYTES", 10_000)
    FORMS[name](tmp_path / name)
    found = splits(train=[name], validation_share=0.25)
    of = {split: [text for text in SENTENCES if is_held_out(text, 0.25) == (split == "validation")] for split in found}
    for split, texts in of.items():
        assert re.match(rf"estimated from [\d,]+ of the {len(texts):,} documents$", found[split].source)
        assert found[split].documents == len(texts)
        assert covers(found[split], sum(len(text.split()) for text in texts))


@pytest.mark.parametrize("name", FORMS)
def test_a_large_corpus_is_estimated_from_a_part_of_its_text(splits, tmp_path, monkeypatch, name):
    monkeypatch.setattr(facts, "READ_BYTES", 40_000)
    FORMS[name](tmp_path / name)
    found = splits(train=[name], validation_share=0.25)
    assert re.match(r"estimated from [\d,]+ of the documents in [\d.]+\xa0% of", found["train"].source)
    assert found["train"].tokens == pytest.approx(0.75 * TOKENS, rel=0.3)
    assert found["validation"].tokens == pytest.approx(found["train"].tokens / 3)


@pytest.mark.parametrize("cap", [0, 4])
def test_documents_of_other_lengths_behind_the_first_ones_are_seen(splits, tmp_path, monkeypatch, cap):
    """A few long documents, then many short ones, in a file and in many files: within a factor 1.3 and the interval.

    With a cap, a long document has as much text as a short one.
    """
    lengths = [300] * 6 + [5] * 240
    texts = [[*SENTENCES[start : start + length]] for start, length in enumerate(lengths)]
    tokens = sum(len(line.split()) for text in texts for line in text[: cap or None])
    assert cap == 0 or tokens < 0.5 * TOKENS
    rows = [json.dumps({"text": "\n".join(text)}) for text in texts]
    (tmp_path / "one.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr(facts, "SAMPLE_BYTES", 10_000)
    whole = splits(train=["one.jsonl"], validation=["one.jsonl"], sentences_per_document=cap)["train"]
    assert whole.source == "estimated from 30 of the 246 documents"
    assert covers(whole, tokens)
    assert 1 / 1.3 < whole.tokens / tokens < 1.3
    for number in range(41):
        (tmp_path / f"part{number:02}.jsonl").write_text("\n".join(rows[6 * number : 6 * number + 6]))
    monkeypatch.setattr(facts, "READ_BYTES", 40_000)  # of 246 documents with some 90,000
    spread = splits(train=["part*.jsonl"], validation=["part*.jsonl"], sentences_per_document=cap)["train"]
    assert "of the documents in" in spread.source
    if cap:  # without one, what was not read may have longer documents
        assert 1 / 1.3 < spread.tokens / tokens < 1.3


def test_intervals_cover_what_is_there():
    """95 of 100 are meant to; of 200, 180 is a chance of 1 in 1,000 for 95 %. Documents have 1 to 40 sentences, read to 12."""
    generator, covered = np.random.default_rng(0), 0

    def encoding(documents):
        made = Encoded(names=[document.name for document in documents])
        for number, document in enumerate(documents):
            for line in document.text.splitlines()[:12]:
                made.ids.append(np.zeros(len(line.split()), np.int32))
                made.document.append(number)
        return made

    for _ in range(200):
        texts = [
            ["w " * generator.integers(2, 30) for _ in range(generator.geometric(0.1))]
            for _ in range(generator.integers(60, 300))
        ]
        documents = [Document(f"a:{n}", "\n".join(text)) for n, text in enumerate(texts)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(facts, "SAMPLE_BYTES", 1000)
            patch.setattr(facts, "_read", lambda *_, documents=documents: (documents, 1.0))
            corpus = Corpus(dataset="files", train=["a"], sentences_per_document=12)
            found, _, _ = facts._sample(corpus, "train", None, encoding)
        covered += covers(found, sum(len(line.split()) for text in texts for line in text[:12]))
    assert covered >= 180


def test_a_packed_file_is_estimated_by_how_far_it_is_read(splits, tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "READ_BYTES", 200_000)
    many = random_sentences(5, 20_000)
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
    capped = [splits(dataset="some/corpus", sentences_per_document=cap)["train"] for cap in (1, 2)]
    monkeypatch.setattr(facts, "describe_split", lambda *_: HubSplit(1000, 90_000_000, []))
    longer = splits(dataset="some/corpus", sentences_per_document=1)["train"]
    assert longer.tokens == pytest.approx(capped[0].tokens) and 1.5 < capped[1].tokens / capped[0].tokens < 2.5
    assert splits(dataset="some/corpus")["train"].tokens == pytest.approx(10 * found["train"].tokens)
    monkeypatch.setattr(facts, "describe_split", lambda *_: HubSplit(1000, 9_000_000, []))
    part = splits(dataset="some/corpus", limit=100)
    assert part["train"].tokens == pytest.approx(found["train"].tokens / 10)
    assert part["validation"].documents == 100


def test_what_the_hub_does_not_say_is_to_be_given(splits, monkeypatch):
    monkeypatch.setattr(facts, "describe_split", lambda *_: HubSplit(None, None, []))
    with refused("Pass --train-tokens"):
        splits(dataset="some/corpus")
    found = splits(9 * 10**7, dataset="some/corpus")
    assert (found["train"].tokens, found["validation"].tokens) == pytest.approx((9 * 10**7, 10**7))


def test_given_tokens_hide_no_missing_data_set(splits, monkeypatch):
    def refuse(*_):
        raise UserError("The corpus nobody/nothing has no split train.")

    monkeypatch.setattr(facts, "describe_split", refuse)
    with refused("nobody/nothing has no split"):
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
    with refused(r"no/such/\*.txt"):
        splits(train=["no/such/*.txt"])
