"""Trigger examples of every key, beside the libraries that others find them with.

The work: of every key, the 50 sentences with the highest positive coefficients, the maximum over its positions standing for
a sentence. All arms read the same checkpoint and the same sentences, on one thread, without gradients; those that cut batches
cut the same. Peers keep what they are asked for here, ffkv what it always keeps: positions, following tokens and statistics
too. How ffkv sets the memory allocator (`ffkv.process.runtime.configure`) is part of ffkv: peers run with the system's setting, as
they do for their users.

What an arm finds must be right: before it starts, the maxima of all sentences are there, from the bare model, one sentence
after another (`maxima`). Each of its coefficients must be the maximum of the sentence that it names and as high as the one
that belongs at its rank, to within `TOLERANCE`: libraries may sum in different orders, and near-ties may change places. No
sentence may come twice. The digest is that of the maxima.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from benchmarks import inputs
from benchmarks.inputs import GPT2, SMALL, Shape
from benchmarks.measure import ROOT, Arm, Row, cpu_ratio
from ffkv.activations.batches import blocks, padding
from ffkv.activations.triggers import find_triggers
from ffkv.batching import batches, pad
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.process.runtime import configure, torch_with
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings

PEERS = ROOT / ".venv-peers/bin/python"
TOP, TOLERANCE = Settings().per_key, 1e-5


def ffkv(scratch: Path, shape: list[int], sentences: int, length: int | None = None) -> Callable:
    """Our pass, of positive triggers."""
    configure(1)
    folder, corpus, warm, right = _ready(scratch, shape, sentences, length)
    loaded, settings = load(folder, "cpu"), Settings(negative=False)
    find_triggers(loaded, warm, settings, Activations())

    def work() -> tuple[str, dict]:
        found = find_triggers(loaded, corpus, settings, Activations())
        return digest(found.coefficient, found.sentence, right), {}

    return work


def transformer_lens(scratch: Path, shape: list[int], sentences: int, logits: bool) -> Callable:
    """TransformerLens: `run_with_cache` of what enters the second matrices, and torch.topk.

    logits: whether logits are computed, as they are with `return_type=None`, too. What leaves them out, but for one token,
    is an argument of transformers that TransformerLens does not know and hands on.
    """
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    folder, corpus, warm, right = _ready(scratch, shape, sentences)
    model = _checkpoint(folder)
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    names = [f"blocks.{layer}.mlp.out.hook_in" for layer in range(len(model.transformer.h))]
    options = {"names_filter": names, "return_type": None, "use_cache": False} | (
        {} if logits else {"logits_to_keep": 1}
    )

    def coefficients(ids: Tensor) -> list[Tensor]:
        _, cache = bridge.run_with_cache(ids, **options)
        return [cache[name] for name in names]

    return _best_of(coefficients, corpus, warm, right)


def nnsight(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """nnsight: a trace of the body that saves what the activations return, and torch.topk."""
    import nnsight as library

    folder, corpus, warm, right = _ready(scratch, shape, sentences)
    model = library.NNsight(_checkpoint(folder).transformer)

    def coefficients(ids: Tensor) -> list[Tensor]:
        with model.trace(ids, use_cache=False):
            outputs = library.save([block.mlp.act.output for block in model.h])
        return outputs

    return _best_of(coefficients, corpus, warm, right)


def delphi(scratch: Path, shape: list[int], sentences: int, length: int) -> Callable:
    """delphi: `LatentCache` over the activation functions, and its pooling of every latent's windows.

    Negative coefficients and BOS are not stored. Windows carry the number of their sentence for tokens, and latents are told
    apart as its `TensorBuffer` does, in memory: through its files, coefficients would lose half of their digits.
    """
    from delphi.latents import LatentCache, pool_max_activation_windows

    folder, corpus, warm, right = _ready(scratch, shape, sentences, length)
    model = _checkpoint(folder).transformer
    names, memories, batch = [f"h.{layer}.mlp.act" for layer in range(len(model.h))], model.config.n_inner, 32

    def encode(coefficients: Tensor) -> Tensor:
        coefficients[:, 0] = 0
        return coefficients.relu_()

    def find(corpus: Corpus) -> tuple[Tensor, Tensor]:
        windows = _ids(corpus, np.arange(len(corpus)))
        cached = LatentCache(model, dict.fromkeys(names, encode), batch_size=batch)
        cached.run(windows.numel(), windows)
        best, who = torch.zeros(len(names) * memories, TOP), torch.full((len(names) * memories, TOP), -1)
        for layer, name in enumerate(names):
            locations, values = cached.cache.latent_locations.pop(name), cached.cache.latent_activations.pop(name)
            order = torch.argsort(locations[:, 2], stable=True)
            locations, values = locations[order], values[order]
            latents, counts = torch.unique_consecutive(locations[:, 2], return_counts=True)
            pieces = zip(latents.tolist(), locations.split(counts.tolist()), values.split(counts.tolist()))
            for latent, place, value in pieces:
                tokens = torch.arange(len(windows))[:, None]
                window, activations = pool_max_activation_windows(value, tokens, place[:, 0], place[:, 1], length)
                key, kept = layer * memories + latent, min(TOP, len(window))
                best[key, :kept], who[key, :kept] = activations[:TOP].amax(1), window[:TOP, 0]
        return best, who

    find(warm)
    return lambda: (digest(*(part.numpy() for part in find(corpus)), right), {})


def maxima(scratch: Path, folder: Path, corpus: Corpus, name: str) -> np.ndarray:
    """The highest coefficient of every key in every sentence [sentence, memory], from the bare model; made once."""
    path = scratch / "maxima" / f"{folder.parent.name}-{name}.npy"
    if not path.exists():
        model, peaks = _checkpoint(folder).transformer, []
        for block in model.h:
            block.mlp.c_proj.register_forward_pre_hook(lambda _, tensors: peaks.append(tensors[0][0, 1:].amax(0)))
        for sentence in range(len(corpus)):
            model(_ids(corpus, [sentence]), use_cache=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, torch.cat(peaks).view(len(corpus), -1).numpy())
    return np.load(path)


def digest(coefficient: np.ndarray, sentence: np.ndarray, right: np.ndarray) -> str:
    """Of the maxima, where the triggers found [memory, rank] are right.

    Args:
        coefficient, sentence: 0 and -1 where there is no trigger. right: see `maxima`.
    Raises:
        RuntimeError: they are not right.
    """
    ranked = -np.partition(-right, TOP - 1, axis=0)[:TOP]
    ranked = np.maximum(-np.sort(-ranked, axis=0), 0).T
    named = np.where(sentence < 0, 0, right[sentence, np.arange(right.shape[1])[:, None]])
    known = np.sort(sentence, axis=1)
    twice = (known[:, 1:] == known[:, :-1]) & (known[:, 1:] >= 0)
    for off in (np.abs(coefficient - ranked) > TOLERANCE, np.abs(coefficient - named) > TOLERANCE, twice):
        if off.any():
            raise RuntimeError(f"{int(off.any(1).sum())} keys have wrong triggers")
    return hashlib.sha256(right.tobytes()).hexdigest()[:16]


def _ready(scratch: Path, shape: list[int], sentences: int, length: int | None = None) -> tuple:
    """One thread; the model's folder, the sentences, some to get warm with, and what is right."""
    torch_with(1)
    folder = inputs.model_folder(scratch, Shape(*shape))
    corpus, warm = (
        read_corpus(inputs.corpus_file(scratch, folder, count, length)) for count in (sentences, inputs.WARM)
    )
    return folder, corpus, warm, maxima(scratch, folder, corpus, f"{sentences}-{length}")


def _checkpoint(folder: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(folder.parent / "checkpoint").eval()


def _ids(corpus: Corpus, sentences: np.ndarray) -> Tensor:
    """What the model reads of sentences: BOS in front, the last token left out [sentence, token]."""
    return pad([np.concatenate([corpus.bos, corpus.ids(sentence)[:-1]]) for sentence in sentences], "cpu")


def _batches(corpus: Corpus) -> Iterator[np.ndarray]:
    """Sentences of similar length, as in ffkv's batches."""
    cut = Activations()
    for block in blocks(len(corpus), cut.block_sentences):
        for rows in batches(corpus.lengths[block.start : block.stop], cut.batch_tokens):
            yield rows + block.start


def _best_of(coefficients: Callable, corpus: Corpus, warm: Corpus, right: np.ndarray) -> Callable:
    """The work of a library that gives the coefficients of a batch, by layer [row, position, memory].

    The 50 best are kept and compared with those of each batch, by torch.topk along the memory's own row: half as expensive
    as along the other dimension.
    """

    def find(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
        best, who = torch.zeros(right.shape[1], TOP), torch.full((right.shape[1], TOP), -1)
        for sentences in _batches(corpus):
            silent = padding(corpus.lengths[sentences], "cpu")
            peaks = []
            for layer in coefficients(_ids(corpus, sentences)):
                if silent is not None:
                    layer.view(-1, layer.shape[-1])[silent] = 0
                peaks.append(layer[:, 1:].amax(1).T)
            names = torch.from_numpy(sentences).expand(len(who), -1)
            best, order = torch.cat([best, torch.cat(peaks)], 1).topk(TOP, 1, sorted=False)
            who = torch.cat([who, names], 1).gather(1, order)
        best, order = best.sort(1, descending=True)
        return best.numpy(), torch.where(best > 0, who.gather(1, order), -1).numpy()

    find(warm)
    return lambda: (digest(*find(corpus), right), {})


class Peer(NamedTuple):
    """A library as an arm. function: of this module. options: that it takes besides. note: what a reader must know."""

    name: str
    function: str
    options: dict[str, bool]
    note: str = ""


def rows(shape: Shape, corpus: dict[str, int], *peers: Peer) -> list[Row]:
    """Our triggers beside those of each peer, from the same runs. corpus: how many sentences, and their length where it is one."""
    same = {"shape": list(shape), **corpus}
    arms = {"ffkv": Arm(f"{__name__}:ffkv", same)}
    arms |= {peer.name: Arm(f"{__name__}:{peer.function}", same | peer.options, PEERS) for peer in peers}
    length = f" of {corpus['length']} tokens" if "length" in corpus else ""
    return [
        Row(
            f"triggers beside {peer.name}",
            f"{shape}, {corpus['sentences']:,} sentences{length}",
            arms,
            cpu_ratio(peer.name, "ffkv"),
            1.0,
            "times the CPU time of ffkv",
            at_most=False,
            equal=("ffkv", peer.name),
            rounds=2,
            note=peer.note,
        )
        for peer in peers
    ]


WINDOWS = (
    "its cache takes windows of one length, so all sentences have it; it keeps all positive coefficients to the end"
)
SPARED = "transformers is told to compute logits of one token only, by an argument that TransformerLens hands on"
ROWS = [
    *rows(
        GPT2,
        {"sentences": 150},
        Peer("TransformerLens", "transformer_lens", {"logits": True}),
        Peer("TransformerLens without logits", "transformer_lens", {"logits": False}, SPARED),
        Peer("nnsight", "nnsight", {}),
    ),
    *rows(SMALL, {"sentences": 512, "length": 32}, Peer("delphi", "delphi", {}, WINDOWS)),
]
