"""Measures how much of each layer's output its dictionary makes again, on real text.

What a dictionary of the residual stream is to make again is the output o of the block, and not y.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ffkv.base.batching import batches, pad
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.corpus.corpus_file import draw_sentences
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.head.head import Head
from ffkv.model.head.topk import predictions
from ffkv.model.keys_and_values import error_of
from ffkv.model.tap import hooks
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import tap
from ffkv_dictionaries.reconstruction.settings import Reconstruction
from ffkv_dictionaries.reconstruction.tables import LAYERS

WHOLE = (-1, "")  # names the loss of the model as it is


class Sums:
    """What is summed over the tokens of a layer."""

    def __init__(self, layer: Layer, device: torch.device):
        self.tokens, self.left, self.square = 0, 0.0, 0.0
        self.output: Tensor | float = 0.0  # y [d]
        self.fired = torch.zeros(layer.memories, dtype=torch.int64, device=device)  # tokens at which each unit is not 0
        # At the tokens whose predictions are read [token, d].
        self.sampled: dict[str, list[Tensor]] = {"y": [], "e": [], "o": []}

    def add(self, m: Tensor, y: Tensor, error: Tensor) -> None:
        """Adds tokens: m [token, unit], y, or o of a dictionary of the residual stream, and what is left of it [token, d]."""
        self.tokens += len(y)
        self.left += float(error.double().square().sum())
        self.square += float(y.double().square().sum())
        self.output = self.output + y.double().sum(0)
        self.fired += (m != 0).sum(0)

    def row(self) -> dict[str, float]:
        """Returns what follows from the sums alone."""
        mean = torch.as_tensor(self.output) / self.tokens
        variance = self.square - self.tokens * float(mean.square().sum())
        return {
            "units": len(self.fired),
            "tokens": self.tokens,
            "unexplained": self.left / variance if variance > 0 else np.nan,
            "active": float(self.fired.sum()) / self.tokens,
            "silent": int((self.fired == 0).sum()),
        }


def measure_reconstruction(given: Given, settings: Reconstruction = Reconstruction(), seed: int = 0) -> pd.DataFrame:
    """Reads the layers with a dictionary on real text: as they are, without what the dictionary leaves, and without their output.

    Returns the table `LAYERS`, a row per layer.
    """
    corpus, loaded = given.validation, given.model()
    sentences = draw_sentences(corpus, settings.tokens, random_stream(seed, Purpose.RECONSTRUCTED_DOCUMENTS))
    rows = [corpus.prefix_ids(sentence, int(corpus.lengths[sentence])) for sentence in sentences]
    beginning, layers = len(corpus.bos), [layer for layer in loaded.anatomy.layers if layer.is_dictionary]
    lengths = np.array([*map(len, rows)])
    step = max(1, -(-int((lengths - beginning).sum()) // settings.prefixes))
    sums = {layer.index: Sums(layer, loaded.devices[layer.index]) for layer in layers}
    losses: dict[tuple[int, str], float] = {}
    with progress(len(rows), "sentences", "reconstruction") as bar:
        for batch in batches(lengths, loaded.batch_tokens):
            own = [rows[row] for row in batch]
            for name, loss in _losses(loaded, own, beginning, layers, sums, step).items():
                losses[name] = losses.get(name, 0.0) + loss
            bar.update(len(batch))
    head, predicted = given.head(), int((lengths - max(beginning, 1)).sum())
    found = []
    for layer in layers:
        loss, only, without = (losses[which] / predicted for which in (WHOLE, (layer.index, "e"), (layer.index, "y")))
        recovered = (without - only) / (without - loss) if without > loss else np.nan
        told = {"loss": loss, "loss_dictionary": only, "loss_without": without, "recovered": recovered}
        summed = sums[layer.index]
        of_units = _predictions(head, summed, layer)
        if layer.index in loaded.anatomy.of_stream:  # its units are not to predict what the layer predicts
            of_units |= {"ffn_dictionary": np.nan, "ffn_error": np.nan}
        found.append({"layer": layer.index, **summed.row(), **told, **of_units})
    return LAYERS.frame(found)


def _losses(
    loaded: LoadedModel,
    rows: Sequence[np.ndarray],
    beginning: int,
    layers: Sequence[Layer],
    sums: dict[int, Sums],
    step: int,
) -> dict[tuple[int, str], float]:
    """Adds what some sentences make of each layer to its `sums`; returns their summed losses by layer and what it does not write.

    That is "e", the error, or "y", anything: of a dictionary of the residual stream, the block then returns 0. `WHOLE`: it writes all.
    """
    ids = pad(list(rows), loaded.device)
    counted = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for row, tokens in enumerate(map(len, rows)):
        counted[row, beginning:tokens] = True
    seen: dict[tuple[int, str], Tensor] = {}

    def loss_of(output: Tensor) -> float:
        told = counted[:, 1:]
        return float(cross_entropy(output[:, :-1][told].float(), ids[:, 1:][told], reduction="sum"))

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[layer.index, quantity] = tensor.clone()

    def without(layer: Layer, what: str) -> Callable[[Tensor], Tensor]:
        part = seen[layer.index, what]
        return lambda o: o - part.to(o).reshape(o.shape)

    with tap(loaded.model, layers, "muyso", whole=True) as run:
        losses = {WHOLE: loss_of(run(ids, receive).logits)}
    for layer in layers:
        m, u, y, o = (seen[layer.index, quantity] for quantity in "muyo")
        if layer.index in loaded.anatomy.of_stream:
            y = o
        error = error_of(loaded.model, layer, u, seen.get((layer.index, "s")))
        seen[layer.index, "y"], seen[layer.index, "e"] = y, error
        own, chosen = sums[layer.index], counted.to(y.device)
        sampled = torch.arange(own.tokens, own.tokens + int(chosen.sum()), device=y.device) % step == 0
        for name, states in (("y", y), ("e", error), ("o", o)):
            own.sampled[name].append(states[chosen][sampled].float().cpu())
        own.add(m[chosen], y[chosen], error[chosen])
    for layer in layers:
        for what in ("e", "y"):
            with with_output(loaded.model, layer, without(layer, what)):
                losses[layer.index, what] = loss_of(hooks.forward(loaded.model, ids).logits)
    return losses


def _predictions(head: Head, sums: Sums, layer: Layer) -> dict[str, float]:
    """Returns how often the units of a dictionary, and what they leave, predict what the layer and its block predict."""
    y, error, o = (torch.cat(sums.sampled[name]).numpy() for name in ("y", "e", "o"))
    of_y, of_units, of_error = (predictions(head, each, layer.index, change=True).ids for each in (y, y - error, error))
    of_output = predictions(head, o, layer.index).ids
    return {
        "prefixes": len(y),
        "ffn_dictionary": float((of_y == of_units).mean()),
        "ffn_error": float((of_y == of_error).mean()),
        "output_error": float((of_output == of_error).mean()),
    }
