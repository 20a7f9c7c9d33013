"""A finished run that is small enough to know every number of."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.made_up_run import write_table
from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES, Negative, Triggers, write_triggers
from ffkv.base.files import datasets, hdf5, tables
from ffkv.branches.behaviours.summary_tables import OF_MEMORIES
from ffkv.branches.settings import Behaviour, Settings
from ffkv.branches.values.projections import Projections, read_projections, write_projections
from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.encode import Encoded
from ffkv.model.anatomy import Anatomy, Layer, SecondMatrix, write_anatomy
from ffkv.model.checkpoint.vocabulary import Vocabulary
from ffkv.run.results.run import Run, open

HOSTILE = " <script>alert(1)</script>\u202e\x07"
VOCABULARY = [" the", " church", "church", " é", " nan", HOSTILE]
# Token ids of the train sentences; their texts are those of the tokens, one behind the other.
SENTENCES = [[0, 1, 4], [3, 0, 2, 0], [0, 5, 3], [4, 4]]
IDENTITY = {"model": "synthetic", "model_hash": "a" * 16, "tokenizer_hash": "b" * 16}
MEMORIES = [3, 2]  # per layer
NOTHING = (0.0, -1, 0)
# Of each memory: coefficient, sentence and position of its trigger examples; two at most are kept.
EXAMPLES = [
    [(4.0, 1, 3), (2.0, 0, 2)],
    [(1.0, 3, 1), NOTHING],
    [NOTHING, NOTHING],  # a dead key
    [(0.5, 2, 2), NOTHING],
    [(9.0, 2, 1), (8.0, 1, 2)],
]
TOP = [[1, 0, 3], [0, 2, 1], [3, 4, 5], [5, 0, 1], [2, 1, 0]]  # the three top tokens of each value


def anatomy(memories: list[int]) -> Anatomy:
    layers = [
        Layer(n, f"h.{n}", [SecondMatrix(f"h.{n}.v", [f"h.{n}.k"], "gated", count, f"h.{n}.g")], signed=True)
        for n, count in enumerate(memories)
    ]
    return Anatomy(
        checkpoint="synthetic", revision="main", dtype="float32", trust_remote_code=False, architecture="Toy",
        activation="silu", parameters=1234, model_hash="a" * 16, tokenizer_hash="b" * 16, vocabulary=len(VOCABULARY),
        context=8, width=4, last_block="h.1", returns=1, layers=layers, errors={}, versions={},
    )  # fmt: skip


def write_sentences(path: Path, split: str, titles: tuple[str, ...] = ()) -> None:
    """`titles`: of both documents; without them the file has none."""
    encoded = Encoded(names=["one.txt", "two.txt"], titles=[*titles])
    for number, ids in enumerate(SENTENCES):
        encoded.ids.append(np.asarray(ids, np.int32))
        encoded.text.append("".join(VOCABULARY[token] for token in ids))
        encoded.ends.append(np.cumsum([len(VOCABULARY[token]) for token in ids]).astype(np.int32))
        encoded.document.append(number % 2)
        encoded.multiplicity.append(1 + (split == "train"))
    encoded.counts.update(documents=2, sentences=len(SENTENCES))
    write_corpus(path, encoded, [], False, {**IDENTITY, "settings": {"dataset": "toy"}, "beginning": "Nothing."})


def triggers(corpus_hash: str) -> Triggers:
    coefficient, sentence, position = (np.array(values) for values in np.moveaxis(np.array(EXAMPLES), -1, 0))
    exists = coefficient > 0
    following = [
        [SENTENCES[int(s)][int(p)] if s >= 0 else -1 for s, p in zip(*row, strict=True)]
        for row in zip(sentence, position, strict=True)
    ]
    examples = {
        "coefficient": coefficient.astype(np.float32),
        "sentence": sentence.astype(np.int32),
        "position": position.astype(np.int32),
        "next_token": np.array(following, np.int32),
        "multiplicity": exists.astype(np.int32),
        "next_count": exists.astype(np.int32),
        "gate": exists.astype(np.int8),
        "count": exists.sum(1),
        "fires": exists.sum(1) * 2,
    }
    negative = {**examples, "coefficient": -examples["coefficient"], "gate": -examples["gate"]}
    bins = len(HISTOGRAM_EDGES) - 1
    return Triggers(
        **examples,
        layer_offset=np.concatenate([[0], np.cumsum(MEMORIES)]),
        total=np.rint(coefficient.sum(1) / FIXED_POINT).astype(np.int64),
        maximum=examples["coefficient"][:, 0],
        histogram=np.arange(len(EXAMPLES) * bins).reshape(-1, bins),
        prefixes=8,
        attributes={**IDENTITY, "corpus_hash": corpus_hash},
        negative=Negative(**negative, minimum=negative["coefficient"][:, 0]),
    )


def write_values_of(folder: Path, group: int, layer: int) -> None:
    count, start = MEMORIES[layer], sum(MEMORIES[:layer])
    rows = slice(start, start + count)
    top = np.array(TOP, np.int32)[rows]
    log_probability = np.log(
        np.array([[0.5, 0.25, 0.125]] * count, np.float32) / (1 + np.arange(rows.start, rows.stop))[:, None]
    )
    places = {"layer": np.full(count, layer, np.int32), "memory": np.arange(count, dtype=np.int32)}
    projections = Projections(
        **places, top=top[:, 0], tied=np.zeros(count, bool), top_token=top, top_log_probability=log_probability,
        bottom=top[:, -1], bottom_token=top[:, ::-1], bottom_log_probability=log_probability[:, ::-1],
        norm=np.ones(count, np.float32), attributes=IDENTITY,
        **{f"logit_{moment}": np.ones(count, np.float32) for moment in ("variance", "skewness", "kurtosis")},
    )  # fmt: skip
    write_projections(folder / f"values/projections/{group}.h5", projections)
    following = [SENTENCES[s][p] if s >= 0 else -1 for ((_, s, p), _) in EXAMPLES[rows]]
    write_table(
        folder, f"values/by_memory/{group}.parquet",
        {**places, "norm": 1.0, "top_token": top[:, 0], "top_probability": np.exp(log_probability[:, 0]),
             "bottom_token": top[:, -1], "triggers": 2, "next_token": following, "rank": 1, "agrees": top[:, 0] == following, "matching": 1},
    )  # fmt: skip
    rows = [(sample, layer, 0, number, "last word", "shallow", f"ends with “{HOSTILE}”", 3 + number, 0.1, [0])
            for sample in ("trigger", "random") for number in (0, 1)]  # fmt: skip
    names = ["sample", "layer", "memory", "pattern", "kind", "family", "label", "prefixes", "q_value", "ranks"]
    write_table(folder, f"keys/patterns/{group}.parquet", dict(zip(names, zip(*rows, strict=True), strict=True)))
    sampled = {"sample": ["trigger", "random"], "layer": layer, "memory": 0, "rank": 0, "category": "shallow"}
    write_table(folder, f"keys/by_prefix/{group}.parquet", sampled)


def add_roles(folder: Path) -> Path:
    """Adds the roles of all memories: enrichment, depletion and none of layer 0; enrichment and depletion of layer 1."""
    outputs = [["prediction", "other", ""], ["suppression", "prediction"]]
    for layer, output in enumerate(outputs):
        place = {"layer": layer, "memory": range(len(output)), "output_role": output}
        roles = ["enrichment", "depletion", ""][: len(output)]
        write_table(folder, f"roles/by_memory/{layer}.parquet", {**place, "role": roles})
    return folder


def write_small_run(folder: Path) -> Path:
    """Writes a run of two layers of three and two memories, in two layer groups, into `folder`."""
    settings = Settings.model_validate(
        {"layer_groups": 2, "model": {"checkpoint": "synthetic"}, "values": {"top_tokens": 3}}
    )
    (folder / "model").mkdir(parents=True)
    (folder / "settings.json").write_text(settings.model_dump_json())
    write_anatomy(folder / "model", anatomy(MEMORIES))
    with hdf5.create(folder / "model" / "vocabulary.h5", "vocabulary", IDENTITY) as file:
        datasets.write(file, Vocabulary(VOCABULARY))
    for split in ("train", "validation"):
        write_sentences(folder / f"corpus/{split}.h5", split)
    with hdf5.open(folder / "corpus/train.h5", "corpus") as corpus:
        write_triggers(folder / "triggers.h5", triggers(corpus.attrs["corpus_hash"]))
    for layer in range(len(MEMORIES)):
        write_values_of(folder, layer, layer)
    agreement = {"layer": [0, 1] * 2, "source": ["trigger"] * 2 + ["uniform"] * 2, "rate": [0.5, 0.25, 0, 0]}
    write_table(folder, "values/figure_4_agreement.csv", agreement)
    write_table(folder, "keys/activity.csv", {"layer": [0, 1], "dead": [1, 0]})
    predictive = {"token": ["nan", "1"], "next_token": ["null", ""], "norm": [1.5, 2.5]}
    write_table(folder, "values/table_2_predictive_values.csv", predictive)
    write_table(folder, "checkpoint/training.csv", {"step": [1]})  # of a run with other settings
    return folder


# Of each candidate: behaviour, layer, memory, reach, effect, contrast.
CANDIDATES = [
    ("agreement", 0, 1, "direct", 9.0, 0.25), ("agreement", 0, 1, "total", 0.5, 0.25),
    ("agreement", 1, 1, "direct", 0.0, -2.0), ("agreement", 1, 1, "total", 1.5, -2.0),
    ("agreement", 0, 0, "direct", 0.0, 1.0), ("agreement", 0, 0, "total", -2.0, 1.0),
    ("lists", 1, 0, "total", np.nan, 1.0), ("lists", 0, 1, "total", np.nan, 3.0),
]  # fmt: skip


def add_behaviours(folder: Path) -> Path:
    """Adds two behaviours to the small run; no effects of the second one were measured."""
    names = ("agreement", "lists")
    settings = Settings.model_validate_json((folder / "settings.json").read_text())
    behaviours = {name: Behaviour(prompts=f"{name}.jsonl") for name in names}
    (folder / "settings.json").write_text(settings.model_copy(update={"behaviours": behaviours}).model_dump_json())
    nothing = dict.fromkeys(OF_MEMORIES.names, 0)
    rows = [
        nothing | {"token": "x", "behaviour": name, "layer": layer, "memory": memory, "reach": reach, "effect": effect,
                   "effect_q": effect / 10, "estimate": contrast, "screen_estimate": 2 * contrast}
        for name, layer, memory, reach, effect, contrast in CANDIDATES
    ]  # fmt: skip
    tables.write(OF_MEMORIES.frame(rows), folder / OF_MEMORIES.path)
    return folder


def add_translation(folder: Path) -> Path:
    """Lets the small run read values translated, too: each value's tokens come in the opposite order, its rank is 2."""
    settings = Settings.model_validate_json((folder / "settings.json").read_text())
    both = settings.model_copy(update={"values": settings.values.model_copy(update={"readout": "both"})})
    (folder / "settings.json").write_text(both.model_dump_json())
    for group in range(len(MEMORIES)):
        own = read_projections(folder / f"values/projections/{group}.h5")
        ends = {name: getattr(own, f"{other}{rest}")
                for end, other in (("top", "bottom"), ("bottom", "top"))
                for rest in ("", "_token", "_log_probability") for name in [f"{end}{rest}"]}  # fmt: skip
        write_projections(folder / f"translation/projections/{group}.h5", replace(own, **ends))
        by_memory = tables.read(folder / f"values/by_memory/{group}.parquet")
        rows = [
            by_memory.assign(
                reading=reading, top_token=top, bottom_token=bottom, rank=2, head_top_token=0, head_agrees=False
            )
            for reading, top, bottom in (("translated", ends["top"], ends["bottom"]), ("shuffled", 4, 4))
        ]
        tables.write(pd.concat(rows), folder / f"translation/by_memory/{group}.parquet")
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The folder of the small run, for tests to copy."""
    return write_small_run(tmp_path_factory.mktemp("written") / "small")


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """The folder of a small run that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "small"))


@pytest.fixture
def run(folder) -> Run:
    """The small run, open."""
    return open(folder)
