"""The rows of data sets of the hub: what is read, in which order, how much is fetched, and what is refused."""

import pytest

from tests.base.hub.contents import json_dataset, parquet, parquet_dataset, readme, sentences

pytestmark = pytest.mark.slow

DOCUMENTS = """
from ffkv.corpus.sources import read_documents
def texts(dataset, split="train", **settings):
    return [document.text for document in read_documents(Corpus(dataset=dataset, **settings), split)]
def name_split(**settings):
    return {"train": [settings.pop("split")]} | settings
"""


def texts(rows) -> list[str]:
    return [row["text"] for row in rows]


def answers(cases) -> list:
    """The answers of cases that `attempt` reported, none of which was refused."""
    assert not [case["refusal"] for case in cases if case["refusal"]]
    return [case["answer"] for case in cases]


def test_a_limit_reads_no_more_files_than_it_needs_and_the_same_documents(hub, child):
    """30 files, listings of 7 entries a page; with a limit nothing is kept, and without one all is fetched once."""
    hub.page_size = 7
    rows = sentences(300)
    hub.dataset("someone/large").push(parquet_dataset({"default": {"train": rows}}, count=30, group_rows=5))
    for compression in ("gz", "zst"):
        hub.dataset(f"someone/{compression}").push(json_dataset({"train": rows}, compression, count=30))
    code = f"""{DOCUMENTS}
names = ["large", "gz", "zst"]
print(json.dumps([attempt(texts, "someone/" + name, limit=15) for name in names]))
"""
    # A hundredth of the rows is held out, none of these: `limit` counts the documents that are left.
    first = answers(child(code))
    assert first[0] == first[1] == first[2]
    assert len(first[0]) == 15
    read = {
        name: {r.path.rpartition("/")[2] for r in hub.asked(rf"{name}/.*\.(parquet|gz|zst)$", "GET")}
        for name in ("large", "gz", "zst")
    }
    assert all(1 <= len(files) <= 4 for files in read.values()), read

    hub.requests.clear()
    whole = f"""{DOCUMENTS}
told = [attempt(texts, "someone/large"), attempt(texts, "someone/large", "validation")]
over("done")
told += [attempt(texts, "someone/large"), attempt(texts, "someone/large", limit=15)]
print(json.dumps(told))
"""
    hub.when("/over/done", hub.requests.clear)
    told = child(whole)
    train, validation, again, limited = answers(told)
    assert again == train and train[:15] == limited == first[0]
    assert sorted(train + validation) == sorted(texts(rows)) and validation
    assert told[0]["said"].count("Fetching ") == 1  # the card came with the limit
    assert "Fetching 30 files, " in told[0]["said"]
    assert "someone/large, revision main, commit " in told[0]["said"] and str(hub.url) in told[0]["said"]
    assert not any(case["said"] for case in told[1:])
    assert not hub.asked("parquet")  # all is in the cache


def test_configs_splits_fields_and_what_is_refused(hub, child, tmp_path):
    rows = {"train": sentences(40), "validation": sentences(8, 40)}
    both = {"small": rows, "large": {"train": sentences(60)}}
    hub.dataset("someone/words").push(parquet_dataset(both))
    csv = "".join(f"{row['text']}\n" for row in [{"text": "text"}, *sentences(5)]).encode()
    hub.dataset("someone/csv").push({"train.csv": csv})
    hub.dataset("someone/readme").push({"README.md": b"# Nothing else"})
    hub.dataset("someone/numbers").push({"train.parquet": parquet([{"text": 1}, {"text": 2}])})
    hub.dataset("someone/mixed").push(
        {"README.md": readme({"default": {"train": "a.parquet"}}), "a.parquet": parquet(sentences(4))}
    )
    local = tmp_path / "someone" / "local"
    local.mkdir(parents=True)
    (local / "train.csv").write_bytes(csv)
    code = f"""{DOCUMENTS}
both = dict(train=["train"], validation=["validation"])
good = [
    attempt(texts, "someone/words", config="small", **both),
    attempt(texts, "someone/words", "validation", config="small", **both),
    attempt(texts, "someone/words", "validation", config="small", limit=3, **both),
    attempt(texts, "someone/csv", validation_share=1e-9),
    attempt(texts, "someone/csv", validation_share=1e-9, limit=2),
    attempt(texts, "someone/mixed", validation_share=1e-9),
    attempt(texts, "someone/local", validation_share=1e-9),
]
bad = [
    attempt(texts, "someone/words", limit=limit, **settings)
    for limit in (0, 2)
    for settings in [
        dict(config="small", train=["test"]), dict(config="huge"), dict(), dict(config="small", text_field="body"),
    ]
]
bad += [attempt(texts, "someone/" + name, limit=limit) for name in ("readme", "numbers", "nothing") for limit in (0, 2)]
print(json.dumps([good, bad]))
"""
    good, bad = child(code)
    few = texts(sentences(5))
    assert answers(good) == [
        texts(rows["train"]), texts(rows["validation"]), texts(rows["validation"])[:3], few, few[:2], texts(sentences(4)), few
    ]  # fmt: skip
    assert "someone/local is read from the folder of this name in the working directory" in good[-1]["said"]
    told = [case["refusal"] for case in bad]
    for refusals in (told[:4], told[4:8]):
        split, config, several, field = refusals
        assert "test" in split and "train" in split and "validation" in split, split
        assert "small" in config and "large" in config, config
        assert "small" in several and "large" in several, several
        assert "has no field 'body'; it has 'text'. Set corpus.text_field" in field
    for refusal in told[8:10]:
        assert "someone/readme" in refusal and "data" in refusal, refusal
    for refusal in told[10:12]:
        assert "someone/numbers:train, row 0: field 'text' contains int, not text" in refusal
    for refusal in told[12:]:
        assert "The data set someone/nothing cannot be read: the hub has no data set of this name" in refusal
        assert "The folder someone in the working directory holds nothing of this name" in refusal


def test_offline_after_a_download_of_all_files_at_the_right_commit(hub, child):
    """What `hf download` stores is read without the hub; what is missing is named."""
    old, new = sentences(40), sentences(50, 100)
    repository = hub.dataset("someone/words")
    first = repository.push(parquet_dataset({"small": {"train": old, "test": old[:3]}}, count=2))
    repository.tags["v1"] = first
    latest = repository.push(parquet_dataset({"small": {"train": new, "test": old[:3]}}, count=2))
    hub.dataset("someone/part").push(parquet_dataset({"small": {"train": old}}, count=2))
    code = f"""{DOCUMENTS}
from huggingface_hub import hf_hub_download, snapshot_download
settings = dict(config="small", validation_share=1e-9)
texts("someone/words", **settings)  # `datasets` sees the newer commit first
for revision in ("v1", "main"):
    snapshot_download("someone/words", repo_type="dataset", revision=revision)
snapshot_download("someone/part", repo_type="dataset", allow_patterns=["README.md", "*00000-of*"])
over("gone")
told = []
for forbidden in (True, False):
    offline(forbidden)
    told.append([
        attempt(texts, "someone/words", **settings),
        attempt(texts, "someone/words", revision="v1", **settings),
        attempt(texts, "someone/words", revision="v1", limit=5, **settings),
        attempt(texts, "someone/words", revision="{first}", **settings),
        attempt(texts, "someone/part", **settings),
        attempt(texts, "someone/never", **settings),
        attempt(texts, "someone/words", revision="v2", **settings),
    ])
print(json.dumps(told))
"""
    hub.when("/over/gone", hub.stop)
    for cases, forbidden in zip(child(code, timeout=2), (True, False), strict=True):
        told = [case["refusal"] for case in cases[4:]]
        assert answers(cases[:4]) == [texts(new), texts(old), texts(old)[:5], texts(old)]
        if forbidden:
            assert not any(case["said"] for case in cases)
            assert (
                "HF_HUB_OFFLINE is set, and 1 of its files were not fetched before, small/train-00001-of-00002"
                in told[0]
            )
            assert "hf download --repo-type dataset someone/part --revision " in told[0]
            assert all("HF_HUB_OFFLINE is set" in refusal and "hf download" in refusal for refusal in told)
        else:
            assert f"The hub does not answer. someone/words is read at commit {latest}" in cases[0]["said"]
            assert f"is read at commit {first}, which v1 was at" in cases[1]["said"]
            assert all("cannot be reached" in refusal for refusal in told), told


def test_rows_are_chosen_by_their_columns_before_the_limit_counts(hub, child):
    """`corpus.where`, streamed and fetched, from parquet and from JSON lines; a column inside another."""
    rows = [
        {**row, "language": "de" if number % 3 else "en", "meta": {"set": f"s{number % 2}", "year": 2000 + number}}
        for number, row in enumerate(sentences(60))
    ]
    hub.dataset("someone/tables").push(parquet_dataset({"default": {"train": rows}}, count=3))
    hub.dataset("someone/lines").push(json_dataset({"train": rows}, "gz", count=3))
    code = f"""{DOCUMENTS}
def chosen(dataset, where, limit=0):
    return texts(dataset, where=where, limit=limit, validation_share=1e-9)
print(json.dumps([
    [attempt(chosen, "someone/" + name, where, limit) for limit in (4, 0) for where in (
        {{"language": ["en"]}}, {{"meta.set": ["s1"], "language": ["en"]}}, {{"meta.year": ["2001", "2059"]}},
    )] + [attempt(chosen, "someone/" + name, where, 4) for where in ({{"lang": ["en"]}}, {{"meta.sets": ["s1"]}})]
    for name in ("tables", "lines")
]))
"""
    english = [row["text"] for row in rows if row["language"] == "en"]
    both = [row["text"] for row in rows if row["language"] == "en" and row["meta"]["set"] == "s1"]
    years = [rows[1]["text"], rows[59]["text"]]
    for *cases, top, inside in child(code):
        assert answers(cases) == [english[:4], both[:4], years, english, both, years]
        assert "has no column 'lang'; it has 'text', 'language', 'meta.set', 'meta.year'" in top["refusal"]
        assert "has no column 'meta.sets'; it has " in inside["refusal"]
