"""A made-up run of three layers, whose keys have eight prefixes each, and its sheets."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ffkv
from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES, Triggers, write_triggers
from ffkv.base.files import datasets, hdf5, tables
from ffkv.branches.keys.tables import BY_PREFIX, PATTERNS
from ffkv.branches.settings import Settings
from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.encode import Encoded
from ffkv.model.anatomy import write_anatomy
from ffkv.model.checkpoint.vocabulary import Vocabulary
from ffkv_annotation.records import Record
from ffkv_annotation.settings import Sheets
from ffkv_annotation.sheets import Sheet, read_sheet
from ffkv_annotation.step import make_sheets
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor
from tests.run.results.conftest import IDENTITY, anatomy

MEMORIES = [5, 5, 5]
PREFIXES = 8
SENTENCES = 120
LONGEST = 12
# A token that would be a formula in a spreadsheet, and one that would be a script on a page.
WORDS = ["=HYPERLINK(1)", " the", " cat", " sat", " on", " a", " mat", "\n+1", " <script>alert(1)</script>", " é"]


def write_split(path: Path, rows: list[np.ndarray], words: list[str], pretokenized: bool = False) -> str:
    """Writes sentences of words as a split of a corpus. Returns its hash."""
    encoded = Encoded(names=["one.txt"])
    for ids in rows:
        encoded.ids.append(ids)
        encoded.text.append("".join(words[token] for token in ids))
        encoded.ends.append(np.cumsum([len(words[token]) for token in ids]).astype(np.int32))
        encoded.document.append(0)
        encoded.multiplicity.append(1)
    encoded.counts.update(documents=1, sentences=len(rows))
    about = {**IDENTITY, "settings": {"dataset": "toy"}, "beginning": "Nothing."}
    write_corpus(path, encoded, [], pretokenized, about)
    with hdf5.open(path, "corpus") as file:
        return file.attrs["corpus_hash"]


def write_beginning(folder: Path, memories: list[int], words: list[str], **settings) -> None:
    """Writes what a run begins with: its settings, the shape of its model, and the vocabulary."""
    (folder / "model").mkdir(parents=True)
    made = Settings.model_validate({"model": {"checkpoint": "synthetic"}, **settings})
    (folder / "settings.json").write_text(made.model_dump_json())
    write_anatomy(folder / "model", replace(anatomy(memories), vocabulary=len(words)))
    with hdf5.create(folder / "model" / "vocabulary.h5", "vocabulary", IDENTITY) as file:
        datasets.write(file, Vocabulary(words))


def made_up_triggers(corpus_hash: str, rows: list[np.ndarray]) -> Triggers:
    generator = np.random.default_rng(6)
    keys = sum(MEMORIES)
    sentence = np.stack([generator.permutation(SENTENCES)[:PREFIXES] for _ in range(keys)]).astype(np.int32)
    position = generator.integers(2, LONGEST, (keys, PREFIXES)).astype(np.int32)
    coefficient = -np.sort(-generator.random((keys, PREFIXES)).astype(np.float32))
    ones = np.ones((keys, PREFIXES), np.int32)
    following = [[rows[s][p] for s, p in zip(*each, strict=True)] for each in zip(sentence, position, strict=True)]
    return Triggers(
        coefficient=coefficient, sentence=sentence, position=position, next_token=np.array(following, np.int32),
        multiplicity=ones, next_count=ones, gate=ones.astype(np.int8), count=np.full(keys, PREFIXES), fires=np.full(keys, 9),
        layer_offset=np.concatenate([[0], np.cumsum(MEMORIES)]),
        total=np.rint(coefficient.sum(1) / FIXED_POINT).astype(np.int64), maximum=coefficient[:, 0],
        histogram=np.ones((keys, len(HISTOGRAM_EDGES) - 1), np.int64), prefixes=100,
        attributes={**IDENTITY, "corpus_hash": corpus_hash}, negative=None,
    )  # fmt: skip


def pattern_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the tests found: in every key a shallow pattern in the first three prefixes; in odd ones a semantic one, too."""
    patterns, prefixes = [], []
    for sample in ("trigger", "random"):
        for layer, count in enumerate(MEMORIES):
            for memory in range(count):
                own = [("shallow", range(3))] * (sample == "trigger") + [("semantic", range(2, 6))] * (memory % 2)
                for number, (family, ranks) in enumerate(own):
                    row = (sample, layer, memory, number, family, family, f"{family} one")
                    patterns.append((*row, len(ranks), 0.1, 0.01, 0.02, list(ranks)))
                for rank in range(PREFIXES):
                    has = {family for family, ranks in own if rank in ranks}
                    category = " and ".join(sorted(has, reverse=True)) or "none"
                    prefixes.append((sample, layer, memory, rank, category))
    return pd.DataFrame(patterns, columns=PATTERNS.names), pd.DataFrame(prefixes, columns=BY_PREFIX.names)


def write_run(folder: Path) -> Path:
    """Writes the run into `folder`, results/<run>."""
    write_beginning(folder, MEMORIES, WORDS, values={"top_tokens": 3})
    generator = np.random.default_rng(5)
    rows = [generator.integers(0, len(WORDS), LONGEST).astype(np.int32) for _ in range(SENTENCES)]
    write_split(folder / "corpus/validation.h5", rows, WORDS)
    corpus_hash = write_split(folder / "corpus/train.h5", rows, WORDS)
    write_triggers(folder / "triggers.h5", made_up_triggers(corpus_hash, rows))
    for name, table in zip(("patterns", "by_prefix"), pattern_tables(), strict=True):
        tables.write(
            tables.identify(table, {**IDENTITY, "corpus_hash": corpus_hash}), folder / f"keys/{name}/0.parquet"
        )
    changes = [(n, f"text {n}", "x", WORDS[n % 5], WORDS[5 + n % 5], 0.1, 0.5, "") for n in range(10)]
    names = ["prefix", "text", "next_token", "residual_token", "output_token", "cosine", "cosine_percentile", "related"]
    tables.write(pd.DataFrame(changes, columns=names), folder / "refinement/prediction_changes.csv")
    return folder


def say(sheet: Sheet, item: str, *patterns, annotator: str = "person:anna", done: bool = True, **said) -> Record:
    """What an annotator says about an item of a sheet."""
    said |= {"patterns": patterns} if patterns else {}
    return sheet.record(annotator, item, done=done, **said)


DESIGN = Sheets(annotators=["anna", "bert"], per_layer=4, changes=6, controls=0.25, shared=0.5, repeated=0.2, seed=3)


@pytest.fixture(scope="session")
def made_up(tmp_path_factory) -> Path:
    """The folder of the run. Nobody changes it."""
    return write_run(tmp_path_factory.mktemp("annotation") / "results" / "made")


@pytest.fixture
def run(made_up):
    return ffkv.open(made_up)


@pytest.fixture(scope="session")
def with_sheets(made_up, tmp_path_factory) -> Path:
    """A folder with the run, and with sheets of keys and changes. Nobody changes it."""
    folder = tmp_path_factory.mktemp("sheets")
    shutil.copytree(made_up, folder / "results" / "made")
    make_sheets(ffkv.open(made_up), folder / "annotations" / "made", DESIGN)
    return folder


@pytest.fixture
def own(with_sheets, tmp_path) -> Path:
    """The folder of a run of one's own, with its sheets beside it."""
    shutil.copytree(with_sheets, tmp_path, dirs_exist_ok=True)
    return tmp_path / "results" / "made"


@pytest.fixture
def annotations(own) -> Path:
    """The folder of its annotations."""
    return own.parent.parent / "annotations" / "made"


@pytest.fixture
def keys(annotations) -> Sheet:
    """Its sheet of keys."""
    return read_sheet(annotations, "keys")


@pytest.fixture
def visitor(own) -> Visitor:
    """Somebody with a browser without a screen."""
    return Visitor(open_shelf([own]))


@pytest.fixture
def visit_two(own, with_sheets, tmp_path) -> Visitor:
    """An explorer of two runs with sheets of the same names."""
    shutil.copytree(with_sheets, tmp_path / "other")
    return Visitor(open_shelf([own, tmp_path / "other" / "results" / "made"]))
