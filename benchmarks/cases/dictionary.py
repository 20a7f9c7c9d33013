"""The trigger pass of a model that reads a layer through a dictionary, beside what it cannot do without.

That is the forward pass of the model's body, and at the layer the product with the encoder and what makes coefficients of it: a
comparison with thresholds, or the k largest.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.cases.triggers import forward_of
from benchmarks.inputs import GPT2, make_corpora, prepare_model
from benchmarks.measure import Comparison, Work, cpu_ratio, same_work
from ffkv.activations.batches import Batching
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Dictionary, Model, Triggers
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.step import prove

TIMES, LARGEST = 8, 32  # units per memory of the layer, the one in the middle; k of a TopK
OFF = 2.3  # standard deviations: a unit with a random key is active at one of a hundred tokens


def prepare(scratch: Path, shape: list[int], topk: bool) -> tuple[LoadedModel, dict[str, Tensor], Path]:
    """The model alone, a dictionary of its layer in the middle, and the folder of the model that is read through it, made if it is not there."""
    model = prepare_model(scratch, shape)
    loaded, folder = load(model, "cpu"), model.parent / f"dictionary{'-topk' * topk}"
    mlp: Any = loaded.model.get_submodule(f"transformer.h.{shape[0] // 2}.mlp")
    units, width = TIMES * shape[2], shape[1]
    torch.manual_seed(0)
    tensors = {
        "W_enc": torch.randn(units, width) / width**0.5,
        "b_enc": torch.full((units,), -OFF),
        "W_dec": 1e-3 * torch.randn(units, width) / width**0.5,
        "b_dec": torch.zeros(width),
        # Random units explain nothing. The linear part of the layer explains enough for the proof.
        "W_skip": (mlp.c_fc.weight @ mlp.c_proj.weight).T.detach() / 2,
    }
    if not (folder / "model" / "anatomy.json").exists():
        (folder / "model").mkdir(parents=True, exist_ok=True)
        said = f"model_kind: transcoder_set\n{f'activation: topk{chr(10)}k: {LARGEST}' * topk}\n"
        (folder / "config.yaml").write_text(said)
        save_file(
            {name: each.contiguous() for name, each in tensors.items()}, folder / f"layer_{shape[0] // 2}.safetensors"
        )
        named = Dictionary(path=str(folder), reads="normed")
        prove(Model(checkpoint=str(model.parent / "checkpoint"), device="cpu"), dictionary=named).write(
            folder / "model"
        )
    return loaded, tensors, folder / "model"


def ffkv(scratch: Path, shape: list[int], sentences: int, topk: bool) -> Work:
    """The pass of ffkv: triggers of the units, and of the memories of all other layers, with all statistics."""
    _, _, folder = prepare(scratch, shape, topk)
    loaded, (corpus, warm) = load(folder, "cpu"), make_corpora(scratch, folder, sentences)
    find_triggers(loaded, warm, Triggers(), Batching())
    return lambda: find_triggers(loaded, corpus, Triggers(), Batching()) and None


def forward(scratch: Path, shape: list[int], sentences: int, topk: bool) -> Work:
    """The body of the model, with a hook that computes the coefficients of the dictionary, and keeps nothing."""
    loaded, tensors, folder = prepare(scratch, shape, topk)
    mlp: Any = loaded.model.get_submodule(f"transformer.h.{shape[0] // 2}.mlp")
    mlp.c_fc.register_forward_pre_hook(partial(_read, tensors, topk))
    return forward_of(loaded.model.base_model, *make_corpora(scratch, folder, sentences))


def _read(tensors: dict[str, Tensor], topk: bool, module: torch.nn.Module, args: tuple[Tensor]) -> None:
    m = torch.nn.functional.linear(args[0], tensors["W_enc"], tensors["b_enc"]).relu_()
    if topk:
        chosen = m.topk(LARGEST, -1)
        torch.zeros_like(m).scatter_(-1, chosen.indices, chosen.values)


COMPARISONS = [
    Comparison(
        f"triggers through a dictionary{f', TopK of {LARGEST}' * topk}",
        f"{GPT2}, {TIMES} d_m units in one layer, {sentences} sentences",
        same_work(__name__, ("forward", "ffkv"), shape=GPT2, sentences=sentences, topk=topk),
        cpu_ratio("ffkv", "forward"),
        1.15,
        "times the CPU time of the forward pass with the product of the encoder",
    )
    for topk, sentences in ((False, 500), (True, 500))
]
