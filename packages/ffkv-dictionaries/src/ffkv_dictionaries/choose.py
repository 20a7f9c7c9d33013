"""Measures where dictionaries read and write. Files name the place in other ways, or not at all: the proof decides.

Each candidate is an input and an output. That one is right whose dictionaries leave the smallest share of the output's variance
unexplained on real tokens, Σ‖y - ŷ‖² / Σ‖y - mean of y‖².
"""

import contextlib
import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir
from ffkv.base.settings import Dictionary as Settings
from ffkv.model.anatomy import DictionaryPlace, Layer
from ffkv.model.dictionaries import Dictionaries
from ffkv.model.effects.reads import Read, find_norm, hear
from ffkv.model.placement import in_float32
from ffkv.model.shape import Shape
from ffkv.model.tap import hooks
from ffkv.model.tap.tap import flat
from ffkv_dictionaries.files import find_below
from ffkv_dictionaries.forms import Dictionary, form_of
from ffkv_dictionaries.layer import LargestMemories, activate, as_read, gain_of, put
from ffkv_dictionaries.tensors import stored_in

MOST = 0.9  # largest share of variance that a dictionary may leave unexplained
ROUNDED = 4  # times the precision of the model's type: what a sum of two numbers may be off by, relative to them
NEAR = 1.05  # times: two candidates as near to each other cannot be told apart
READS = {
    "normed": "input of the layer",
    "unscaled": "input of the layer without the gain of its norm",
    "residual": "input of the norm",
    "output": "output of the layer",
    "stream": "residual stream behind the layer",
}
WRITES = {"before": "output of the second matrix", "after": "output of the module behind it"}


def choose_places(
    model: nn.Module, layers: Sequence[Layer], ids: Tensor, settings: Settings
) -> tuple[list[DictionaryPlace], list[str]]:
    """Finds where the dictionaries of a folder read and write in a model that is proven, and says what each candidate leaves.

    `layers`: all of the model. `ids`: real tokens [sentence, token]; the first of each sentence does not count, as it often has a state
    of its own. Returns the places, ascending, and a line of text per candidate. Raises UserError if a dictionary cannot be read or
    does not fit the model; or no candidate explains a tenth of the variance, or two of them explain about as much.
    """
    if not settings.path:
        return _largest(model, layers, ids, settings)
    form = form_of(Path(settings.path))
    files = _of_layers(form.layers(Path(settings.path)), settings, len(layers))
    found: dict[str, list[DictionaryPlace]] = {}
    closed = ""  # of the first layer that no dictionary of the residual stream fits, a sentence
    told: dict[int, str] = {}  # what the files of a layer say of its place
    seen = _see(model, [layers[number] for number in files], ids)
    for number, file in files.items():
        dictionary = form.load(file)
        told[number] = f" Its files say: {dictionary.told}." if dictionary.told else ""
        _check(dictionary, seen[number], file)
        relative = str(file.relative_to(settings.path)) if file != Path(settings.path) else ""
        candidates = [*_candidates(model, seen[number], relative)]
        if not any(each.place.of_stream for each in candidates) and not closed:
            closed = (
                f" No dictionary of the residual stream fits layer {number} ({seen[number].layer.kind}): its block does not return"
                " the sum of what the norm before the layer reads and the layer's output."
            )
        for each in candidates:
            if settings.reads in ("auto", each.reads) and settings.writes in ("auto", each.writes):
                left = unexplained(as_read(model, each.place, dictionary), each.x, each.y)
                found.setdefault(each.name, []).append(replace(each.place, unexplained=left))
    complete = {name: places for name, places in found.items() if len(places) == len(files)}
    if not complete:
        raise UserError(
            f"dictionary.reads {settings.reads} and dictionary.writes {settings.writes}: the layers do not have such a place."
            f" Set both to auto, and ffkv measures which of the places fits.{closed}"
        )
    sums = {name: sum(place.unexplained for place in places) for name, places in complete.items()}
    order = sorted(complete, key=sums.__getitem__)
    table = [_line(name, complete[name]) for name in order]
    best = complete[order[0]]
    poor = [place for place in best if not place.unexplained <= MOST]
    listed = "; ".join(table)
    if poor:
        raise UserError(
            f"{settings.path}: the dictionary of layer {poor[0].layer} explains too little of what it is to add up to: at most"
            f" {MOST:.0%} of the variance may be left. Share that is left, by where it reads and writes: {listed}. It may be of"
            " another model, another layer (dictionary.layers), or of another part of the block, such as"
            f" attention.{closed}{told[poor[0].layer]}"
        )
    if len(order) > 1 and sums[order[1]] <= NEAR * sums[order[0]]:
        raise UserError(
            f"{settings.path}: two places explain about as much, so that it is not known where the dictionary reads and writes."
            f" Share of the variance that is left: {listed}. Set dictionary.reads and dictionary.writes as its makers say.{told[best[0].layer]}"
        )
    return best, table


def install(model: nn.Module, places: Sequence[DictionaryPlace], folder: str) -> str:
    """Puts the dictionaries of a folder into the places that were chosen for them. Returns a hash over them.

    Raises UserError if one of them cannot be read.
    """
    digest, form = hashlib.sha256(), form_of(Path(folder)) if folder else None
    for place in places:
        dictionary = form.load(Path(folder) / place.file) if form is not None else None
        put(model, place, dictionary)
        digest.update(str(place).encode())
        if dictionary is not None:
            digest.update(f"{dictionary.largest} {dictionary.either_sign}".encode())
            for name, tensor in dictionary.tensors().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def count_units(settings: Settings, layers: int, width: int) -> dict[int, int]:
    """Returns the number of units of each layer that a dictionary is read in, from what its files say of their tensors.

    `layers`: number of the model's. `width`: d. Raises UserError if the files cannot be read, or have no matrix of this width.
    """
    if not settings.path:
        return {}
    path, found = Path(settings.path), dict[int, int]()
    for number, place in _of_layers(form_of(path).layers(path), settings, layers).items():
        files = find_below(place, "*.safetensors", "*.npz") if is_dir(place) else [place]
        shapes = [stored.shape for file in files for stored in stored_in(file).values() if len(stored.shape) == 2]
        sides = [sum(shape) - width for shape in shapes if width in shape]  # the other side of each matrix
        if not sides:
            raise UserError(
                f"{place} has no matrix that reads vectors of {width} numbers: it is a dictionary of another model."
            )
        found[number] = max(sides, key=lambda side: (side != width, side))  # a skip connection is no matrix of units
    return found


def resize(shape: Shape, settings: Settings) -> Shape:
    """Returns the sizes of a model that is read through dictionaries. Raises: see `count_units`."""
    units = count_units(settings, shape.layers, shape.width)
    memories = tuple(units.get(layer, own) for layer, own in enumerate(shape.memories))
    more = 2 * shape.width * sum(units.values())  # beside the layers, which write as they do
    return shape._replace(memories=memories, parameters=shape.parameters + more, body=shape.body + more)


DICTIONARIES = Dictionaries(choose_places, install, resize)


def _largest(
    model: nn.Module, layers: Sequence[Layer], ids: Tensor, settings: Settings
) -> tuple[list[DictionaryPlace], list[str]]:
    """Returns the places where layers are cut to their largest memories. Raises UserError if a layer has no single second matrix."""
    wanted = _of_layers({layer.index: Path() for layer in layers}, settings, len(layers))
    places = []
    for layer in (layers[number] for number in wanted):
        matrix = layer.second_matrices[0]
        weight = getattr(model.get_submodule(matrix.module), "weight", None)
        if len(layer.second_matrices) > 1 or matrix.experts or getattr(weight, "ndim", 0) != 2:
            raise UserError(
                f"layer {layer.index} ({layer.kind}) cannot be cut to its largest memories: it has no single"
                " second matrix. Leave it out of dictionary.layers."
            )
        places.append(DictionaryPlace(layer.index, "", settings.largest, layer.block, matrix.module, "", "", [], 0.0))
    seen = _see(model, [layers[place.layer] for place in places], ids)
    told = []
    for place in places:
        y, m = seen[place.layer].outputs[place.writes], seen[place.layer].m
        native = model.get_submodule(place.writes)
        with in_float32(native):
            cut = LargestMemories(native, settings.largest)

            def left(largest: int, cut: LargestMemories = cut, m: Tensor = m, y: Tensor = y) -> float:
                cut.largest = largest
                return share_left(y, cut.decoder(cut.keep(m)))

            counts = range(1, m.shape[1])
            largest = settings.largest or 1 + bisect_left(counts, settings.explains - 1, key=lambda count: -left(count))
            told.append(replace(place, largest=largest, unexplained=left(min(largest, m.shape[1]))))
    return told, [f"layer {place.layer} is cut to its {place.largest} largest memories per token" for place in told]


def unexplained(dictionary: Dictionary, x: Tensor, y: Tensor) -> float:
    """Returns the share of the variance of y [token, d] that a dictionary leaves when it reads x [token, d]."""
    own = {name: tensor.to(x) for name, tensor in dictionary.tensors().items()}
    m = activate(
        x @ own["encoder"].T + own["encoder_bias"], own.get("threshold"), dictionary.largest, dictionary.either_sign
    )
    made = m @ own["decoder"] + own["decoder_bias"] + (x @ own["skip"].T if "skip" in own else 0)
    return share_left(y, made)


def share_left(y: Tensor, made: Tensor) -> float:
    """Returns the share of the variance of y [token, d] that what was made of it leaves."""
    return float(((y - made).square().sum() / (y - y.mean(0)).square().sum()).cpu())


def _of_layers(files: dict[int | None, Path], settings: Settings, layers: int) -> dict[int, Path]:
    """Returns the file of each layer that is read through a dictionary, ascending. Raises UserError if it is not known."""
    if None in files:
        if len(files) > 1 or len(settings.layers) != 1:
            raise UserError(
                f"{settings.path} does not say which layer it is of. Set dictionary.layers to its number, from 0: [12]"
            )
        told = {settings.layers[0]: files[None]}
    else:
        told = {number: file for number, file in files.items() if number is not None}
    wanted = sorted(settings.layers or told)
    if missing := [number for number in wanted if number not in told]:
        raise UserError(
            f"dictionary.layers: {settings.path or 'the model'} has no layer {missing[0]} to read so. It has: {sorted(told)}"
        )
    if wanted[-1] >= layers:
        raise UserError(
            f"{settings.path} has a dictionary of layer {wanted[-1]}, but the model has the layers 0 to {layers - 1}."
        )
    return {number: told[number] for number in wanted}


class _Seen:
    """What a layer read and wrote on the tokens that count."""

    def __init__(self, layer: Layer):
        self.layer, self.read, self.heard = layer, Read(layer), list[tuple[nn.Module, Tensor, Tensor]]()
        self.m = torch.empty(0)  # what the first second matrix read [token, memory]
        self.outputs: dict[str, Tensor] = {}  # of the block, and of where a dictionary may write, by name [token, d]

    @property
    def places(self) -> dict[str, str]:
        """The modules that a dictionary may write at: "before" and "after" what may follow the second matrix."""
        alone = [matrix.module for matrix in self.layer.second_matrices]
        behind = {"after": self.layer.output_module} if self.layer.output_module else {}
        return {**({"before": alone[0]} if len(alone) == 1 else {}), **behind}


def _see(model: nn.Module, layers: Sequence[Layer], ids: Tensor) -> dict[int, _Seen]:
    """Reads what dictionaries may read and write in some layers, by their numbers, in one pass. Raises UserError if a layer has no place."""
    seen = {layer.index: _Seen(layer) for layer in layers}
    with contextlib.ExitStack() as stack:
        for own in seen.values():
            layer = own.layer
            if layer.repeat or not own.places:
                raise UserError(
                    f"layer {layer.index} ({layer.kind}) has no place for a dictionary: its block runs several times, or no single"
                    " module returns its output"
                )
            inside = model.get_submodule(layer.block).modules()
            stack.enter_context(hooks.after(*((module, partial(hear, own.read, own.heard)) for module in inside)))
            first = model.get_submodule(layer.second_matrices[0].first_matrices[0])
            stack.enter_context(hooks.before((first, partial(find_norm, own.read, own.heard))))
            second = model.get_submodule(layer.second_matrices[0].module)
            stack.enter_context(hooks.before((second, partial(_note_coefficients, own))))
            noted = [*own.places.values(), layer.block]
            stack.enter_context(hooks.after(*hooks.by_name(model, noted, partial(_note, own.outputs))))
        hooks.forward(model, ids)
    counted = torch.arange(ids.numel()).reshape(ids.shape)[:, 1:].flatten()
    for own in seen.values():
        own.read.x, own.read.h = (state[counted].float() for state in (own.read.x, own.read.h))
        own.m = own.m[counted].float()
        own.outputs = {name: output[counted].float() for name, output in own.outputs.items()}
    return seen


def _note(outputs: dict[str, Tensor], name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
    outputs[name] = flat(hooks.known_state(output)).clone()


def _note_coefficients(own: _Seen, module: nn.Module, args: tuple, kwargs: dict) -> None:
    own.m = flat(hooks.hidden_input(args, kwargs)).clone()


class _Candidate(NamedTuple):
    """A place where a dictionary may read and write."""

    reads: str  # one of `READS`
    writes: str  # one of `WRITES`
    place: DictionaryPlace
    x: Tensor  # what it reads [token, d]
    y: Tensor  # what it is to write [token, d]

    @property
    def name(self) -> str:
        return f"{self.reads} {self.writes}"


def _candidates(model: nn.Module, seen: _Seen, file: str) -> Iterator[_Candidate]:
    layer, read = seen.layer, seen.read
    first = layer.second_matrices[0].first_matrices[0]
    norm = next((name for name, module in model.named_modules() if module is read.norm), "")
    inputs: dict[str, tuple[str, str]] = {"normed": (first, "")}
    if read.norm is not None and norm:
        gain, bias = gain_of(read.norm, read.x.shape[1])
        if bool(gain.all()) and (bool((gain - 1).any()) or bool(bias.any())):
            inputs["unscaled"] = first, norm
        inputs["residual"] = norm, ""  # without a norm, this is the input of the layer
    replaces = [matrix.module for matrix in layer.second_matrices]
    for where, writes in seen.places.items():
        y = seen.outputs[writes]
        for name, (reads, without_gain) in {**inputs, "output": ("", "")}.items():
            x = {"output": y, "residual": read.h}.get(name, read.x)
            place = DictionaryPlace(layer.index, file, 0, layer.block, writes, reads, without_gain, replaces, 1.0)
            yield _Candidate(name, where, place, x, y)
        o = seen.outputs[layer.block]
        rounding = ROUNDED * torch.finfo(getattr(torch, hooks.type_name(model))).eps * (read.h.abs() + y.abs())
        if bool(((read.h + y - o).abs() <= rounding).all()):  # nothing else is added, and no norm follows
            yield _Candidate("stream", where, replace(place, reads=norm or first, of_stream=True), o, o)


def _line(name: str, places: Sequence[DictionaryPlace]) -> str:
    reads, writes = name.split()
    shares = ", ".join(f"{place.unexplained:.3g}" for place in places[:8]) + ", ..." * (len(places) > 8)
    if reads == "stream":
        return f"reads and writes the {READS[reads]}: {shares}"
    return f"reads the {READS[reads]}, writes the {WRITES[writes]}: {shares}"


def _check(dictionary: Dictionary, seen: _Seen, file: Path) -> None:
    width = seen.read.x.shape[1]
    if (found := dictionary.encoder.shape[1]) != width:
        raise UserError(
            f"{file} reads vectors of {found} numbers, but layer {seen.layer.index} of the model reads {width}: it is a dictionary"
            " of another model."
        )
