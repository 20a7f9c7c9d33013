"""A finished run of random numbers, of any size: what `ffkv explore` and `ffkv export` read."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.inputs import Shape, draw_sentences
from ffkv.activations.prefix_file import SampledPrefixes
from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES, Negative, Triggers, write_triggers
from ffkv.base.files import datasets, hdf5, tables
from ffkv.branches.settings import Settings
from ffkv.branches.values.projections import Projections, write_projections
from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.encode import Encoded
from ffkv.model.anatomy import Anatomy, Layer, SecondMatrix, read_anatomy, write_anatomy
from ffkv.model.checkpoint.vocabulary import Vocabulary
from ffkv.run.results.expected import table_of

KEPT = 50  # trigger examples per key, and tokens at each end of a value
PREFIXES = 1000  # sampled
IDENTITY = {"model": "random", "model_hash": "0" * 16, "tokenizer_hash": "1" * 16}


def make_run(scratch: Path, shape: list[int], sentences: int, model: Path | None = None) -> Path:
    """The folder of a run of GELU, which keeps both signs; made if it is not there.

    `model`: the folder of a model of this shape, whose run it then is.
    """
    name = "with-model" if model else "random"
    folder = scratch / "runs" / "-".join(map(str, [*shape, sentences])) / "results" / name
    if not folder.exists():
        part = folder.with_name("part")
        shutil.rmtree(part, ignore_errors=True)
        _write(part, Shape(*shape), sentences, model)
        part.rename(folder)
    return folder


def _write(folder: Path, shape: Shape, sentences: int, model: Path | None) -> None:
    identity = read_anatomy(model).identity if model else IDENTITY
    (folder / "model").parent.mkdir(parents=True)
    if model:
        shutil.copytree(model, folder / "model")
    else:
        _write_model(folder, shape)
    words = [f" w{number}" for number in range(shape.vocabulary)]
    settings = {"values": {"top_tokens": KEPT}, "triggers": {"per_key": KEPT}, "model": {"checkpoint": "random"}}
    (folder / "settings.json").write_text(Settings.model_validate(settings).model_dump_json())
    lengths, corpus_hash = {}, {}
    for split in ("train", "validation"):
        path = folder / f"corpus/{split}.h5"
        lengths[split], corpus_hash[split] = _write_split(path, shape, sentences, words, identity)
    generator, memories = np.random.default_rng(0), shape.layers * shape.memories
    of_train, of_validation = ({**identity, "corpus_hash": corpus_hash[split]} for split in ("train", "validation"))
    following = _write_triggers(folder, shape, lengths["train"], of_train, generator)
    _write_prefixes(folder, shape, lengths["validation"], of_validation, generator)
    _write_tables(folder, shape, following, identity, generator)
    with hdf5.create(folder / "values.h5", "values", identity) as file:
        value = hdf5.allocate(file, "value", (memories, shape.width), np.float32, ["memory", "width"], "1", "values")
        for start in range(0, memories, shape.memories):
            value[start : start + shape.memories] = generator.standard_normal((shape.memories, shape.width), np.float32)


def _write_model(folder: Path, shape: Shape) -> None:
    words = [f" w{number}" for number in range(shape.vocabulary)]
    layers = [
        Layer(n, f"h.{n}", [SecondMatrix(f"h.{n}.v", [f"h.{n}.k"], "plain", shape.memories)], True)
        for n in range(shape.layers)
    ]
    anatomy = Anatomy(
        checkpoint="random", revision="main", dtype="float32", trust_remote_code=False, architecture="GPT2LMHeadModel",
        activation="gelu_new", parameters=1, model_hash=IDENTITY["model_hash"], tokenizer_hash=IDENTITY["tokenizer_hash"],
        vocabulary=shape.vocabulary, context=1024, width=shape.width, last_block="", returns=1, layers=layers, errors={},
        versions={},
    )  # fmt: skip
    (folder / "model").mkdir(parents=True)
    write_anatomy(folder / "model", anatomy)
    with hdf5.create(folder / "model/vocabulary.h5", "vocabulary", IDENTITY) as file:
        datasets.write(file, Vocabulary(words))


def _write_split(
    path: Path, shape: Shape, sentences: int, words: list[str], identity: dict[str, str]
) -> tuple[np.ndarray, str]:
    encoded = Encoded(names=["random"])
    ids = draw_sentences(sentences, shape.vocabulary)
    characters = np.array([len(word) for word in words])
    for sentence in ids:
        encoded.ids.append(sentence)
        encoded.text.append("".join(words[token] for token in sentence))
        encoded.ends.append(np.cumsum(characters[sentence]).astype(np.int32))
        encoded.document.append(0)
        encoded.multiplicity.append(1)
    encoded.counts.update(documents=1, sentences=sentences)
    write_corpus(path, encoded, [], False, {**identity, "settings": {"dataset": "random"}, "beginning": "Nothing."})
    with hdf5.open(path, "corpus") as file:
        return np.array([len(sentence) for sentence in ids]), str(file.attrs["corpus_hash"])


def _examples(
    memories: int, lengths: np.ndarray, vocabulary: int, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    sentence = generator.integers(0, len(lengths), (memories, KEPT), np.int32)
    shape = sentence.shape
    return {
        "coefficient": -np.sort(-generator.random(shape, np.float32), axis=1),
        "sentence": sentence,
        "position": (1 + generator.random(shape) * (lengths[sentence] - 1)).astype(np.int32),
        "next_token": generator.integers(0, vocabulary, shape, np.int32),
        "multiplicity": np.ones(shape, np.int32),
        "next_count": np.ones(shape, np.int32),
        "gate": np.zeros(shape, np.int8),
        "count": np.full(memories, KEPT, np.int32),
        "fires": generator.integers(1, 10**6, memories),
    }


def _write_triggers(
    folder: Path, shape: Shape, lengths: np.ndarray, attributes: dict[str, str], generator: np.random.Generator
) -> np.ndarray:
    """Returns the token that follows each strongest trigger example [memory]."""
    memories = shape.layers * shape.memories
    positive, negative = (_examples(memories, lengths, shape.vocabulary, generator) for _ in range(2))
    negative["coefficient"] *= -1
    triggers = Triggers(
        **positive, layer_offset=np.arange(shape.layers + 1) * shape.memories,
        total=np.rint(generator.standard_normal(memories) / FIXED_POINT).astype(np.int64),
        maximum=positive["coefficient"][:, 0],
        histogram=generator.integers(0, 10**6, (memories, len(HISTOGRAM_EDGES) - 1)),
        prefixes=int(lengths.sum()), attributes=attributes,
        negative=Negative(**negative, minimum=negative["coefficient"][:, 0]),
    )  # fmt: skip
    write_triggers(folder / "triggers.h5", triggers)
    return positive["next_token"][:, 0]


def _write_prefixes(
    folder: Path, shape: Shape, lengths: np.ndarray, attributes: dict[str, str], generator: np.random.Generator
) -> None:
    sentence = np.sort(generator.integers(0, len(lengths), PREFIXES, np.int32))
    sizes = {"layer": shape.layers, "width": shape.width, "memory": shape.layers * shape.memories, "prefix": PREFIXES}
    sizes |= {
        "largest_layer": shape.memories,
        "states_per_chunk": 256,
        "coefficients_per_chunk": max(1, 2**18 // shape.memories),
    }
    with hdf5.create(folder / "sampled_prefixes.h5", "sampled prefixes", attributes) as file:
        datasets.allocate(file, SampledPrefixes, sizes, ["x", "factor", "end", "y", "o"])
        file["layer_offset"][...] = np.arange(shape.layers + 1) * shape.memories
        file["sentence"][...], file["position"][...], file["next_token"][...] = sentence, 1, 0
        for layer in range(shape.layers):
            columns = slice(layer * shape.memories, (layer + 1) * shape.memories)
            file["m"][:, columns] = generator.standard_normal((PREFIXES, shape.memories), np.float32)


def _write_tables(
    folder: Path, shape: Shape, following: np.ndarray, identity: dict[str, str], generator: np.random.Generator
) -> None:
    memories = shape.layers * shape.memories
    layer, memory = np.divmod(np.arange(memories, dtype=np.int32), shape.memories)
    ends = {}
    for end in ("top", "bottom"):
        ends[f"{end}_token"] = generator.integers(0, shape.vocabulary, (memories, KEPT), np.int32)
        ends[f"{end}_log_probability"] = np.sort(-10 * generator.random((memories, KEPT), np.float32), axis=1)[:, ::-1]
        ends[end] = ends[f"{end}_token"][:, 0]
    moments = {f"logit_{name}": np.ones(memories, np.float32) for name in ("variance", "skewness", "kurtosis")}
    norm, tied = generator.random(memories, np.float32), np.zeros(memories, bool)
    write_projections(
        folder / "values/projections/0.h5",
        Projections(layer=layer, memory=memory, tied=tied, norm=norm, **moments, attributes=identity, **ends),
    )
    by_memory = {
        "layer": layer, "memory": memory, "norm": norm, "contribution": norm, "top_token": ends["top"],
        "top_probability": np.exp(ends["top_log_probability"][:, 0]), "tied": tied, "bottom_token": ends["bottom"],
        "triggers": KEPT, "next_token": following, "rank": 17, "agrees": ends["top"] == following, "matching": 3,
        "first_match": 0, "negative_triggers": KEPT, "negative_next_token": following, "negative_agrees": False,
    }  # fmt: skip
    write_table(folder, "values/by_memory/0.parquet", by_memory)
    sampled = np.arange(0, memories, 16)
    patterns = {
        "sample": "trigger", "layer": layer[sampled], "memory": memory[sampled], "pattern": 0, "kind": "last word",
        "family": "shallow", "label": [f"ends with “w{number % 500}”" for number in range(len(sampled))], "prefixes": 12,
        "chance": 0.01, "p_value": 1e-6, "q_value": 1e-5, "ranks": [[0, 1, 2]] * len(sampled),
    }  # fmt: skip
    write_table(folder, "keys/patterns/0.parquet", patterns)
    of_keys = {name: patterns[name] for name in ("sample", "layer", "memory")} | {"rank": 0, "category": "shallow"}
    write_table(folder, "keys/by_prefix/0.parquet", of_keys)
    layers = np.arange(shape.layers)
    write_table(folder, "keys/activity.csv", {"layer": layers, "dead": 0, "firing_median": 0.5})
    write_table(folder, "values/figure_4_agreement.csv", {"layer": layers, "source": "trigger", "rate": 0.1})


def write_table(folder: Path, name: str, columns: dict, attributes: Mapping[str, Any] | None = None) -> None:
    """Writes a table of a run. Columns that are not given and that nobody asks for get 0, "" or False."""
    made_up = {"str": "", "bool": False, "object": None}
    of_others = {
        each.name: made_up.get(each.dtype, 0)
        for each in table_of(name).columns
        if each.name not in columns and not each.optional
    }
    tables.write(tables.identify(pd.DataFrame({**columns, **of_others}), attributes or {}), folder / name)
