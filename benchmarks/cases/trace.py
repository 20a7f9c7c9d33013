"""A trace of one prompt, beside the forward pass of the prompt and the plain products that read out r, y and o."""

from pathlib import Path

import numpy as np
import torch

import ffkv as package
from benchmarks.cases.values import multiply
from benchmarks.inputs import GPT2, Shape, draw_sentences, prepare_model
from benchmarks.made_up_run import write_table
from benchmarks.measure import Comparison, Work, cpu_ratio, same_work
from ffkv.branches.settings import Settings
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.encode import Encoded, Rows
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.run.results.run import Run

POINTS = 3  # r, y and o


def ffkv(scratch: Path, shape: list[int], length: int) -> Work:
    """The second trace of a run: the first one loads the model."""
    run = make_run(prepare_model(scratch, shape))
    prompt = " ".join(f"w{word}" for word in draw_sentences(1, Shape(*shape).vocabulary, length - 1)[0])
    assert len(package.trace(run, prompt, device="cpu").tokens) == length
    return lambda: {"deviation": package.trace(run, prompt, device="cpu").deviation}


def products(scratch: Path, shape: list[int], length: int) -> Work:
    """The forward pass with its logits, then as many vectors by the output embedding as there are r, y and o."""
    folder, sizes = prepare_model(scratch, shape), Shape(*shape)
    model = load(folder, "cpu").model
    ids = torch.from_numpy(draw_sentences(1, sizes.vocabulary, length)[0].astype(np.int64))[None]
    vectors = np.random.default_rng(0).standard_normal((POINTS * length, sizes.width), np.float32)
    read_out = multiply(folder, [vectors] * sizes.layers)

    def work() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False)
        read_out()

    work()
    return work


def make_run(model: Path) -> Run:
    """The files of a run that a trace reads, beside a model folder; what its values promote is made up."""
    folder, anatomy = model.parent, read_anatomy(model)
    if not (folder / "settings.json").exists():
        identity = {**anatomy.identity, "settings": {}, "beginning": "w0 precedes every sentence."}
        for split in ("train", "validation"):
            ids = Rows([np.array([1, 2], np.int32)] * 2)
            encoded = Encoded(ids, ids, ["xx"] * 2, [0] * 2, [1] * 2, ["one"])
            (folder / "corpus").mkdir(exist_ok=True)
            write_corpus(folder / f"corpus/{split}.h5", encoded, [0], True, identity)
        counts = [layer.memories for layer in anatomy.layers]
        memories = {"layer": np.repeat(range(len(counts)), counts), "memory": np.concatenate([*map(np.arange, counts)])}
        corpus = read_corpus(folder / "corpus/train.h5")
        columns = {**memories, "top_token": 0, "top_probability": 0.5}
        write_table(folder, "values/by_memory/0.parquet", columns, {**identity, **corpus.attributes})
        settings = Settings.model_validate({"layer_groups": 1, "model": {"checkpoint": anatomy.checkpoint}})
        (folder / "settings.json").write_text(settings.model_dump_json())
    return package.open(folder)


COMPARISONS = [
    Comparison(
        "trace",
        f"{GPT2}, a prompt of 30 tokens",
        same_work(__name__, ("products", "ffkv"), shape=GPT2, length=30),
        cpu_ratio("ffkv", "products"),
        1.5,
        "times the CPU time of the forward pass and the plain matrix products",
    )
]
