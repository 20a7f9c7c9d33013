"""How large a corpus is: counted, read, from a sample, from the hub, or given."""

import gzip
import json

import datasets
import numpy as np
import pandas as pd
import pytest
from support import random_sentences, word_tokenizer

from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.errors import UserError
from ffkv.plan import sample
from ffkv.plan.shape import shape_of_run
from ffkv.plan.text import Split, from_tokens, text_of_run
from ffkv.settings import Settings

SENTENCES = random_sentences(3, 3000)
TOKENS = sum(len(sentence.split()) for sentence in SENTENCES)


@pytest.fixture
def plan_text(checkpoints, tmp_path, monkeypatch):
    """The splits of a corpus, as a run beside it would have them."""
    monkeypatch.chdir(tmp_path)

    def splits(given=None, **corpus):
        model = {"checkpoint": str(checkpoints("gpt2"))}
        corpus = {"dataset": "files", "splitter": "line", "deduplicate": False, **corpus}
        settings = Settings(model=model, corpus=corpus)
        return text_of_run("mine", settings, shape_of_run(settings), given or {})

    return splits


def test_a_small_corpus_is_counted(plan_text, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:500]))
    found = plan_text(train=["text.txt"])
    assert {split.source for split in found.values()} == {"counted"}
    assert found["train"].tokens + found["validation"].tokens == sum(len(s.split()) for s in SENTENCES[:500])
    assert found["train"].sentences + found["validation"].sentences == 500
    assert found["train"].prefixes == found["train"].tokens - found["train"].sentences


def parquet(texts) -> bytes:
    """A parquet file of texts."""
    return pd.DataFrame({"text": texts}).to_parquet(index=False)


FORMS = {
    "text.txt": lambda path: path.write_text("\n".join(SENTENCES)),
    "text.jsonl": lambda path: path.write_text("\n".join(json.dumps({"text": text}) for text in SENTENCES)),
    "text.csv": lambda path: pd.DataFrame({"n": range(3000), "text": SENTENCES}).to_csv(path, index=False),
    "text.parquet": lambda path: path.write_bytes(parquet(SENTENCES)),
    "text.txt.gz": lambda path: path.write_bytes(gzip.compress("\n".join(SENTENCES).encode())),
    "text.parquet.gz": lambda path: path.write_bytes(gzip.compress(parquet(SENTENCES))),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_large_corpus_is_estimated_from_a_part(plan_text, tmp_path, monkeypatch, name):
    budget = 24_000 if name.endswith(".gz") else 10_000  # the first bytes of a packed file hold less text than others
    monkeypatch.setattr(sample, "BUDGET", budget)
    monkeypatch.setattr("ffkv.plan.text.BUDGET", 10_000)
    FORMS[name](tmp_path / name)
    found = plan_text(train=[name], validation=[name])["train"]
    assert found.source.startswith("estimated from ")
    assert int(found.source.split()[2].replace(",", "")) < 2000
    assert found.tokens == pytest.approx(TOKENS, rel=0.15)
    assert 0 < found.error < 0.2
    held_out = plan_text(train=[name])
    assert held_out["validation"].tokens == pytest.approx(held_out["train"].tokens / 9, rel=0.01)


def long_lines(number, length):
    """Texts of about `length` characters, all different, and their tokens."""
    pick = np.random.default_rng(length).choice
    texts = [" ".join(pick(SENTENCES, length // 30)) for _ in range(number)]
    return texts, sum(len(text.split()) for text in texts)


@pytest.mark.parametrize("files, lines, length", [(1, 60, 24_000), (20, 100, 1_200), (1, 6, 150_000)])
@pytest.mark.parametrize("ending", ["jsonl", "JSONL.GZ", "csv"])
def test_lines_are_read_to_their_end_however_long(plan_text, tmp_path, files, lines, length, ending):
    total = 0
    for number in range(files):
        texts, tokens = long_lines(lines, length)
        total += tokens
        if ending == "csv":
            pd.DataFrame({"text": texts}).to_csv(tmp_path / f"{number}.csv", index=False)
        else:
            data = "\n".join(json.dumps({"text": text}) for text in texts).encode()
            (tmp_path / f"{number}.{ending}").write_bytes(gzip.compress(data) if ending.endswith("GZ") else data)
    found = plan_text(train=[f"*.{ending}"], validation=[f"*.{ending}"])["train"]
    assert found.source.startswith("estimated from ")
    assert found.tokens == pytest.approx(total, rel=0.3)


@pytest.mark.parametrize("lengths", [[10] * 400, [3000] * 9, [10, 9000, 10, 10, 9000, 10], [5000, *[10] * 50, 5000]])
def test_no_line_is_sampled_twice_or_cut(tmp_path, lengths):
    lines = [f"{number}:{'x' * length}\n" for number, length in enumerate(lengths)]
    (tmp_path / "text.txt").write_text("".join(lines))
    with (tmp_path / "text.txt").open("rb") as file:
        spent = sample._write_places(tmp_path / "text.txt", file, tmp_path / "piece.txt", 2000)
    taken = (tmp_path / "piece.txt").read_text().splitlines(keepends=True)
    assert sum(map(len, taken)) == spent > 0
    assert [line for line in lines if line in set(taken)] == taken


def test_a_field_of_any_length_is_read(plan_text, tmp_path):
    texts, tokens = long_lines(20, 180_000)
    assert min(map(len, texts)) > 131_072
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "text.csv", index=False)
    found = plan_text(train=["text.csv"], validation=["text.csv"])["train"]
    assert found.tokens == pytest.approx(tokens, rel=0.3)


@pytest.mark.parametrize("name", ["text.jsonl", "text.txt", "text.csv", "text.txt.gz"])
def test_a_line_that_a_run_refuses_is_not_read_to_its_end(plan_text, tmp_path, monkeypatch, name):
    monkeypatch.setattr(sample, "LONGEST", 300_000)
    data = b"text\nx\n" + b"a " * 10**6
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    monkeypatch.setattr("ffkv.plan.text.BUDGET", 10)
    with pytest.raises(UserError, match=f"{name} cannot be read: it has a line that is longer than 300,000 characters"):
        plan_text(train=[name])


@pytest.mark.parametrize("ending, message", [('"x', "unexpected end of data"), ('"a"b\n', "expected after")])
def test_a_broken_csv_file_is_named(plan_text, tmp_path, monkeypatch, ending, message):
    (tmp_path / "text.csv").write_text("text\n" + "a\n" * 30 + ending)
    monkeypatch.setattr("ffkv.plan.text.BUDGET", 10)
    with pytest.raises(UserError, match=rf"text\.csv cannot be read: .*{message}.* in the row after 31 others"):
        plan_text(train=["text.csv"])


@pytest.mark.parametrize(
    "data", [b"PAR1", gzip.compress(b"no parquet"), gzip.compress(parquet(["a"]))[:-20]], ids=["plain", "other", "cut"]
)
def test_broken_packed_parquet_is_named(plan_text, tmp_path, data):
    (tmp_path / "rows.PARQUET.gz").write_bytes(data)
    with pytest.raises(UserError, match=r"The corpus .*rows\.PARQUET\.gz cannot be read: "):
        plan_text(train=["rows.PARQUET.gz"])


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.jsonl.gz"])
def test_a_large_list_of_json_is_refused(plan_text, tmp_path, name):
    data = ("[\n" + ",\n".join(json.dumps({"text": text}) for text in SENTENCES * 3) + "]").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UserError, match="is one JSON list, of which no part can be read"):
        plan_text(train=[name])


def test_a_limit_is_a_number_of_documents(plan_text, tmp_path, monkeypatch):
    monkeypatch.setattr("ffkv.plan.text.BUDGET", 10_000)
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    assert plan_text(train=["text.txt"], validation=["text.txt"], limit=300)["train"].tokens == pytest.approx(
        TOKENS / 10, rel=0.1
    )


def test_a_split_that_was_made_is_read(plan_text, tmp_path, checkpoints):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:200]))
    tokenizer = word_tokenizer(["<bos>", *[f"w{number}" for number in range(59)]])
    made = encode([Document("one", "\n".join(SENTENCES[:90]))], tokenizer, 31, "line", False, "windows", False)
    settings = Settings(corpus={"dataset": "files", "splitter": "line", "deduplicate": False, "train": ["text.txt"]})
    (tmp_path / "results/mine/corpus").mkdir(parents=True)
    write_corpus(
        tmp_path / "results/mine/corpus/train.h5", made, [0], 60, False, {"settings": settings.corpus.model_dump()}
    )
    found = plan_text(train=["text.txt"])
    assert found["train"].source == "read from its file"
    assert (found["train"].sentences, found["train"].tokens) == (90, sum(len(s.split()) for s in SENTENCES[:90]))
    assert found["validation"].source == "counted"
    assert plan_text(train=["text.txt"], limit=5)["train"].source == "counted"  # made by other settings: not this one


def test_the_hub_is_asked_for_its_size_alone(plan_text, monkeypatch):
    splits = datasets.SplitDict()
    splits.add(datasets.SplitInfo("train", num_bytes=9_000_000, num_examples=1000))
    monkeypatch.setattr(
        datasets,
        "load_dataset_builder",
        lambda *_, **__: type("Builder", (), {"info": datasets.DatasetInfo(splits=splits)})(),
    )
    found = plan_text(dataset="some/corpus")
    assert found["train"].tokens == pytest.approx(0.9 * 2_000_000)
    assert found["validation"].documents == pytest.approx(100)
    assert "hub" in found["train"].source


def test_what_the_hub_does_not_say_is_to_be_given(plan_text, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="pass --train-tokens and --validation-tokens"):
        plan_text(dataset="nobody/nothing")
    found = plan_text({"train": 10**8, "validation": 10**5}, dataset="nobody/nothing")
    assert (found["train"].tokens, found["validation"].tokens) == (10**8, 10**5)
    assert found["train"] == from_tokens(10**8)


def test_a_missing_file_is_named(plan_text):
    with pytest.raises(UserError, match=r"No corpus file matches 'no/such/\*.txt'"):
        plan_text(train=["no/such/*.txt"])


def test_a_missing_field_is_named_with_its_own_file(plan_text, tmp_path, monkeypatch):
    monkeypatch.setattr("ffkv.plan.text.BUDGET", 10)
    FORMS["text.jsonl"](tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match=r"rows\.jsonl has no field 'body'") as refused:
        plan_text(train=["rows.jsonl"], text_field="body")
    assert "/tmp" not in str(refused.value).replace(str(tmp_path), "")


def test_mean_length_of_a_prefix():
    """Sentences of 3 and 5 tokens have prefixes of 1, 2 and of 1, 2, 3, 4 tokens."""
    split = Split(tokens=8, sentences=2, documents=1, size=0, square=(9 + 25) / 2, seconds=0, source="")
    assert split.prefixes == 6
    assert split.prefix_length == pytest.approx(np.mean([1, 2, 1, 2, 3, 4]))
