"""Sums of Jacobians over texts: how what the head reads depends on the block output of each layer, and how what the feed-forward
layers read depends on the embedding of a token (docs/translation.md).

After the Jacobian lens (Gurnee et al. 2026, transformer-circuits.pub/2026/workspace). Differs in three things: sums are in fixed point,
so that shards and interrupted jobs change no bit; the means of the states are kept, so that states are read around them; and
`reach: same` is estimated, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ffkv.activations.resume import discard_progress, identity, progress_path, read_progress
from ffkv.base.dependencies import code_hash
from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import dataset
from ffkv.base.process.progress import progress
from ffkv.base.settings import Batches
from ffkv.base.signals import stop, stoppable
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.given import Given
from ffkv.branches.translation.settings import LEAST_TOKENS, Translation
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.encode import behind, tokenize
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.effects.gradient import differentiate, link
from ffkv.model.placement import in_float32, running_in_float32
from ffkv.model.tap import hooks
from ffkv.model.tap.tap import tap

KIND = "sums of Jacobians"
FIXED_POINT = 2.0**-30  # what the sums count in: rounding is far below that of float32
LARGEST = 2.0**32  # a sum that surely fits
# Of a change that proves derivatives, relative to the states: large ones change experts, small ones are rounded.
STEPS = 1e-3, 1e-4, 1e-5
TOLERANCE = 0.05  # relative, of that proof


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the texts of a shard, and their number."""

    jacobian: np.ndarray = dataset(
        "layer output input", "int64", unit="2^-30", about="sum of J over the texts", chunks={"layer": 1}
    )
    state: np.ndarray = dataset("layer input", "int64", unit="2^-30", about="sum of the mean of o over its positions")
    end: np.ndarray = dataset("output", "int64", unit="2^-30", about="the same of what the head reads")
    square: np.ndarray = dataset(
        "text layer", "float64", unit="1", about="sum of squares of the entries of J of a text"
    )
    positions: np.ndarray = dataset("text", "int32", unit="token", about="positions of a text that count")
    reading: np.ndarray = dataset(
        "reading_layer input embedding",
        "int64",
        unit="2^-30",
        about="sum of E over the first `translation.reading_texts` texts; no layer without them",
        chunks={"reading_layer": 1},
    )
    attributes: dict[str, Any]  # the attributes of the file


def of_shards(given: Given, name: str, *place: Any) -> Iterator[Any]:
    """Reads a dataset of `Sums`, or a place in it, of each shard."""
    for path in given.files["jacobians"]:
        with hdf5.open(path, KIND, given.identity) as file:
            yield datasets.Checked(file, Sums)[name][place]


def draw_texts(corpus: Corpus, tokenizer: Any, count: int, tokens: int, skip: int, seed: int) -> list[np.ndarray]:
    """Draws texts of a split: each begins with a random sentence and goes on with the next ones of its document. No two overlap.

    `tokens`: of a text with the beginning, at most. `skip`: first positions that do not count. Returns token ids [text][token], each
    text with at least two positions that count: of those that are long enough first, then of the longest.

    Raises:
        UserError: there are fewer such texts.
    """
    document, lengths, bos = np.asarray(corpus.document[:]), corpus.lengths, corpus.bos
    last = np.searchsorted(document, document, side="right")  # the sentence behind the document
    long = np.minimum(corpus.offsets[last] - corpus.offsets[:-1] + len(bos), tokens)
    order = random_stream(seed, Purpose.JACOBIAN_TEXTS).permutation(len(lengths))
    order = order[np.argsort(-long[order], kind="stable")]
    found: list[np.ndarray] = []
    taken = np.zeros(len(lengths), bool)  # what two texts share would count twice
    for first in order[long[order] >= skip + LEAST_TOKENS].tolist():
        if len(found) == count:
            break
        stop = int(np.searchsorted(corpus.offsets, corpus.offsets[first] + tokens)) + 1
        sentences = slice(first, min(stop, int(last[first])))
        if taken[sentences].any():
            continue
        text = " ".join(corpus.texts[sentences])
        ids = behind(bos, next(tokenize([text], tokenizer, bos))[0])[:tokens]
        if len(ids) >= skip + LEAST_TOKENS:
            found.append(ids)
            taken[sentences] = True
    if len(found) < count:
        raise UserError(
            f"The train split has {len(found)} texts of at least {skip + LEAST_TOKENS} tokens, and translation.texts asks for {count}."
            " Set translation.texts, or translation.skip, to less."
        )
    return found


def jacobian_of(
    loaded: LoadedModel, ids: Tensor, counted: slice, copies: int, signs: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns how what the head reads at some positions of a text depends on o of each layer at them.

    J_l = 1/|V| Σ_{t in V} Σ_{t' in V} d o^L_{t'} / d o^l_t. No position depends on a later one. The text is read in several
    copies, and each copy is asked for another coordinate of o^L, so that d / copies backward passes give J of all layers.

    Args:
        ids: tokens [token].
        counted: V, the positions.
        copies: of the text in a pass.
        signs: 1 or -1 by coordinate of o^L and position [d, |V|]: both ends of a dependency are multiplied by the sign of their position.
            In the mean over random signs t' = t alone is left (Hutchinson 1990). None: all t' count.
    Returns:
        J [layer, d, d], by coordinate of o^L and of o^l; the mean of o over V [layer, d]; and that of o^L [d].
    Raises:
        UserError: the model cannot be differentiated, or computes otherwise each time.
    """
    anatomy, states = loaded.anatomy, list[np.ndarray]()
    with torch.enable_grad():
        linked = link(
            loaded,
            ids.expand(copies, -1),
            lambda layer, quantity, tensor: states.append(tensor[0, counted].double().mean(0).cpu().numpy()),
            "o",
        )
        ends = linked.end.detach()
        if float((ends - ends[:1]).abs().max()) > 1e-3 * float(ends.abs().max()):
            message = f"{anatomy.checkpoint} computes otherwise each time, as with dropout."
            raise UserError(f"{message} Its Jacobian would be of several models.")
        end = ends[0, counted].double().mean(0).cpu().numpy()
        width = linked.end.shape[-1]
        found = np.zeros((len(anatomy.layers), width, anatomy.width))
        for rows, weights, along in _unit_vectors(linked.end, counted, signs):
            for layer, gradient in enumerate(linked.gradients(linked.end, along, again=rows.stop < width)):
                found[layer, rows] = _mean_over(gradient, counted, weights)
    return found, np.stack(states), end


def prove_derivative(loaded: LoadedModel, ids: Tensor, counted: slice) -> None:
    """Proves that what the head reads moves as the derivative says, if o of the first layer moves along the gradient.

    Some models pass on no gradient through a part of what they compute. `ids`, `counted`: see `jacobian_of`.

    Raises:
        UserError: it does not; or the model cannot be differentiated.
    """
    states: list[Tensor] = []
    linked = link(loaded, ids[None], lambda layer, quantity, tensor: states.append(tensor), "o")
    along = torch.zeros(linked.end.shape)
    noise = random_stream(0, Purpose.JACOBIAN_SIGNS, 0).normal(size=along[0, counted].shape)
    along[0, counted] = torch.from_numpy(noise).float()
    gradient = linked.gradients(linked.end, along)[0]
    length, found = float(gradient.double().norm()), []
    for step in STEPS:
        change = step * float(states[0].double().norm()) * gradient / length

        def both_ways(layer: Layer, m: Tensor, s: Tensor, change: Tensor = change) -> Tensor:
            return torch.cat([change, -change]) * (layer.index == 0)

        ends = link(loaded, ids.expand(2, -1), edit=both_ways).end.detach().double().cpu()
        found.append(float((along[0] * (ends[0] - ends[1])).sum() / (2 * change.double().norm())))
    if not min(abs(moved - length) for moved in found) <= TOLERANCE * length:
        raise UserError(
            f"The derivative of {loaded.anatomy.checkpoint} is not how it moves: {length:.3g} along the gradient of the first layer,"
            f" and {found[-1]:.3g} when the layer is changed. A part of the model passes on no gradient, or it computes otherwise each"
            " time. Set translation.fit to ridge or divergence, and values.readout to both."
        )


def _unit_vectors(like: Tensor, counted: slice, signs: np.ndarray | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yields unit vectors, one coordinate per copy: the coordinates, their signs [copy, |V|], and the vectors, shaped as `like`."""
    copies, tokens, width = like.shape
    positions = np.arange(tokens)[counted]
    for first in range(0, width, copies):
        rows = slice(first, min(first + copies, width))
        each = np.arange(rows.stop - first)[:, None]
        weights = torch.ones(len(each), len(positions)) if signs is None else torch.from_numpy(signs[rows]).float()
        along = torch.zeros(like.shape)
        along[each, positions, first + each] = weights
        yield rows, weights, along.to(like)


def _mean_over(gradient: Tensor, counted: slice, weights: Tensor) -> np.ndarray:
    """Returns the mean of a derivative [copy, token, d] over the positions that count, with their signs [copy, d]."""
    own = gradient[: len(weights), counted] * weights.to(gradient)[..., None]
    return (own.sum(1) / weights.shape[1]).double().cpu().numpy()


def embeddings_of(loaded: LoadedModel, ids: Tensor) -> Tensor:
    """Returns what the table of embeddings gives for tokens [token]: vectors [token, coordinate], float32, on the model's device."""
    table: Any = loaded.model.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad(), in_float32(table):
        return table(ids.to(loaded.device)[None])[0].float()


def reading_of(loaded: LoadedModel, ids: Tensor, counted: slice, copies: int, signs: np.ndarray) -> np.ndarray:
    """Returns how what the feed-forward layers read at some positions of a text depends on the embedding of the token there.

    E_l = 1/|V| Σ_{t in V} d x^l_t / d e_t, with x^l what layer l reads, behind its norm, and e what the table of embeddings returns. In
    the mean over random signs, as of `jacobian_of`, no other position counts. The derivative along u of all x is linear in u, and is
    differentiated once more: so a pass gives, for each copy, a column of E of every layer.

    Args:
        ids, counted, copies: see `jacobian_of`.
        signs: 1 or -1 by coordinate of the embedding and position [coordinate, |V|].
    Returns:
        E [layer, d, coordinate of the embedding]; zeros of a layer that reads vectors of another length than d.
    Raises:
        UserError: the model cannot be differentiated.
    """
    zeros, read, layers = list[Tensor](), list[Tensor](), loaded.anatomy.layers

    def add_zeros(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        zeros.append(torch.zeros_like(output, requires_grad=True))
        return output + zeros[-1]

    embedding: Any = loaded.model
    # A fused kernel of attention has no second derivative.
    with (
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
        hooks.after((embedding.get_input_embeddings(), add_zeros)),
        tap(loaded.model.requires_grad_(False), layers, "x") as run,
    ):
        run(ids.expand(copies, -1), lambda layer, quantity, x: read.append(x), gradients=True)
        along = [torch.zeros_like(x, requires_grad=True) for x in read]
        (back,) = differentiate(loaded, read, zeros[:1], along, create_graph=True)
        if back is None:
            raise UserError(
                f"{loaded.anatomy.checkpoint} cannot be differentiated: no gradient comes to its embeddings."
            )
        width = back.shape[-1]
        found = np.zeros((len(layers), loaded.anatomy.width, width))
        for columns, weights, vectors in _unit_vectors(back, counted, signs):
            again = columns.stop < width
            for layer, moved in enumerate(differentiate(loaded, back, along, vectors, retain_graph=again)):
                if moved is not None and moved.shape[-1] == loaded.anatomy.width:
                    found[layer][:, columns] = _mean_over(moved, counted, weights).T
    return found


def read_jacobians(
    given: Given, settings: Translation = Translation(), batches: Batches = Batches(), seed: int = 0
) -> Callable[[Path], None]:
    """Returns what writes the sums of one shard of the texts. An interrupted shard goes on behind the texts that are done.

    `settings`: `texts`, `tokens`, `skip`, `reach` and `reading_texts`. `batches`: `tokens`, of the copies of a text in a pass. `seed`: of the texts, and
    of random signs.
    """
    return partial(_write_sums, given, settings, batches, seed)


def _write_sums(given: Given, settings: Translation, batches: Batches, seed: int, path: Path) -> None:
    loaded, part, skip = given.model(gradients=True, batch_tokens=batches.tokens), given.work.part, settings.skip
    anatomy = loaded.anatomy
    if settings.tokens > anatomy.context:
        raise UserError(f"{anatomy.checkpoint} reads {anatomy.context} tokens: set translation.tokens to no more.")
    tokenizer = load_tokenizer(given.files["model"], trust_remote_code=anatomy.trust_remote_code)
    texts = draw_texts(given.train, tokenizer, settings.texts, settings.tokens, skip, seed)
    own, layers, d = [*part.of(len(texts))], len(anatomy.layers), anatomy.width
    of_embedding, read = embeddings_of(loaded, torch.from_numpy(texts[0][:1])).shape[-1], settings.reading_texts
    about = {**given.identity, "settings": settings.model_dump(), "batches": batches.model_dump(), "seed": seed}
    about |= {"corpus_hash": given.train.attributes["corpus_hash"]}
    code = code_hash(f"{__name__}:{read_jacobians.__name__}")
    known = identity(code, {**about, "shard": [part.index, part.count], "tokens": loaded.batch_tokens}, loaded.device)
    sums = Sums(
        jacobian=np.zeros((layers, d, d), np.int64),
        state=np.zeros((layers, d), np.int64),
        end=np.zeros(d, np.int64),
        square=np.zeros((len(own), layers)),
        positions=np.zeros(len(own), np.int32),
        reading=np.zeros((layers if read else 0, d, of_embedding), np.int64),
        attributes={},
    )
    done, saved = 0, read_progress(progress_path(path), known, Sums, attributes={})
    if saved:
        sums, done = saved[0], int((saved[0].positions > 0).sum())
        say(f"going on after {done} texts that are done.", error=True)
    with (
        running_in_float32(loaded.model),
        stoppable() as stopped,
        progress(len(own), "texts", "Jacobians", done) as bar,
    ):
        if own[done:]:
            prove_derivative(loaded, torch.from_numpy(texts[0]).to(loaded.device), slice(skip, len(texts[0]) - 1))
        for place, number in enumerate(own[done:], done):
            ids = texts[number]
            sums.positions[place] = len(ids) - 1 - skip
            text = loaded, torch.from_numpy(ids).to(loaded.device), slice(skip, len(ids) - 1)
            copies = max(2, loaded.batch_tokens // settings.tokens)
            stream, size = random_stream(seed, Purpose.JACOBIAN_SIGNS, number + 1), sums.positions[place]
            along = 2 * stream.integers(0, 2, (d, size)) - 1 if settings.reach == "same" else None
            found = dict(zip(("jacobian", "state", "end"), jacobian_of(*text, copies, along), strict=True))
            if number < read:
                stream = random_stream(seed, Purpose.READING_SIGNS, number + 1)
                found["reading"] = reading_of(*text, copies, 2 * stream.integers(0, 2, (of_embedding, size)) - 1)
            for name, array in found.items():
                if not (np.abs(array) < LARGEST / settings.texts).all():
                    raise UserError(f"Derivatives of {anatomy.checkpoint} are not finite, or too large to be summed.")
                total = getattr(sums, name)
                total += np.rint(array / FIXED_POINT).astype(np.int64)
            sums.square[place] = np.square(found["jacobian"]).sum((1, 2))
            bar.update()
            if number != own[-1] or stopped():
                with hdf5.create(progress_path(path), "progress", {"identity": known}) as file:
                    datasets.write(file, sums)
            if stopped():
                stop(stopped(), f"{place + 1} texts are done and saved")
    with hdf5.create(path, KIND, about) as file:
        datasets.write(file, sums)
    discard_progress(path)
