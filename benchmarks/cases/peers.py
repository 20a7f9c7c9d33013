"""Trigger examples of every key, beside other libraries that can find them.

The work: for every key, the 50 sentences with the highest positive coefficients. The coefficient of a sentence is the
maximum over its positions. All contenders read the same checkpoint and the same sentences, on one thread, without
gradients. Contenders that cut batches cut the same batches. The libraries keep only coefficients and sentences. ffkv keeps
also positions, following tokens and statistics, as always. The setting of the memory allocator
(`ffkv.base.process.runtime.configure`) is a part of ffkv: the libraries run with the system's setting, as for their users.

The results must be right. Before a contender starts, the maxima of all sentences are computed by the bare model, one sentence
after another (`find_maxima`); `check` compares its triggers with them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from benchmarks.inputs import GPT2, SMALL, Shape, ids_of, make_corpora, make_model
from benchmarks.measure import ROOT, Comparison, Contender, Work, cpu_ratio
from ffkv.activations.batches import Batching, batches_of
from ffkv.activations.trigger_file import FINE_BITS
from ffkv.activations.triggers import find_triggers
from ffkv.base.process.runtime import configure, torch_with
from ffkv.base.settings import Triggers
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.checkpoint.load import load

PEERS = ROOT / ".venv-peers/bin/python"
TOP, TOLERANCE = Triggers().per_key, 1e-5
TIED = 2.0 ** (FINE_BITS - 23)  # relative: coefficients that differ by less may be tied, and have each other's rank

# Finds the triggers of a corpus: coefficients, 0 if there is none, and sentences, -1 if there is none [memory, rank].
Find = Callable[[Corpus], tuple[np.ndarray, np.ndarray]]


def find(scratch: Path, shape: list[int], sentences: int, library: str, length: int | None = None) -> Work:
    """Finds the triggers with one of `LIBRARIES`, and checks them. `length`: see `inputs.make_corpora`."""
    if library == "ffkv":
        configure(1)
    torch_with(1)
    folder = make_model(scratch, shape)
    corpus, warm = make_corpora(scratch, folder, sentences, length)
    maxima = find_maxima(scratch, folder, corpus, f"{sentences}-{length}")
    find_in = LIBRARIES[library](folder)
    find_in(warm)
    return lambda: check(*find_in(corpus), maxima)


def with_ffkv(folder: Path) -> Find:
    """The pass of ffkv, with positive triggers only."""
    loaded = load(folder, "cpu")

    def find(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
        triggers = find_triggers(
            loaded, corpus, Triggers(negative=False, shared_prefixes_compete="per_sentence"), Batching()
        )
        return triggers.coefficient, triggers.sentence

    return find


def with_transformer_lens(folder: Path, **further: int) -> Find:
    """TransformerLens: `run_with_cache` of the inputs of the second matrices, and torch.topk.

    It computes all logits even with `return_type=None`. The further argument `logits_to_keep=1` limits them to one token:
    TransformerLens does not know it and passes it on to transformers.
    """
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    model = _checkpoint(folder)
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    names = [f"blocks.{layer}.mlp.out.hook_in" for layer in range(len(model.transformer.h))]

    def coefficients(ids: Tensor) -> list[Tensor]:
        _, cache = bridge.run_with_cache(ids, names_filter=names, return_type=None, use_cache=False, **further)
        return [cache[name] for name in names]

    return by_topk(coefficients, len(names) * model.config.n_inner)


def with_nnsight(folder: Path) -> Find:
    """nnsight: a trace of the body that saves the outputs of the activation functions, and torch.topk."""
    import nnsight

    body = _checkpoint(folder).transformer
    model = nnsight.NNsight(body)

    def coefficients(ids: Tensor) -> list[Tensor]:
        with model.trace(ids, use_cache=False):
            outputs = nnsight.save([block.mlp.act.output for block in model.h])
        return outputs

    return by_topk(coefficients, len(body.h) * body.config.n_inner)


def with_delphi(folder: Path) -> Find:
    """delphi: `LatentCache` over the activation functions, and its pooling of the windows of every latent.

    Negative coefficients and BOS are not stored. In place of tokens, windows carry the number of their sentence. Latents
    are separated as in delphi's `TensorBuffer`, but in memory: in its files, coefficients lose half of their digits.
    """
    from delphi.latents import LatentCache, pool_max_activation_windows

    model = _checkpoint(folder).transformer
    names, memories = [f"h.{layer}.mlp.act" for layer in range(len(model.h))], model.config.n_inner

    def encode(coefficients: Tensor) -> Tensor:
        coefficients[:, 0] = 0
        return coefficients.relu_()

    def find(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
        windows = ids_of(corpus, range(len(corpus)))
        sentences = torch.arange(len(windows))[:, None]
        cached = LatentCache(model, dict.fromkeys(names, encode), batch_size=32)
        cached.run(windows.numel(), windows)
        best, sentence = torch.zeros(len(names) * memories, TOP), torch.full((len(names) * memories, TOP), -1)
        for layer, name in enumerate(names):
            locations, values = cached.cache.latent_locations.pop(name), cached.cache.latent_activations.pop(name)
            order = torch.argsort(locations[:, 2], stable=True)
            locations, values = locations[order], values[order]
            latents, counts = torch.unique_consecutive(locations[:, 2], return_counts=True)
            by_latent = zip(latents.tolist(), locations.split(counts.tolist()), values.split(counts.tolist()))
            for latent, place, value in by_latent:
                window, activations = pool_max_activation_windows(
                    value, sentences, place[:, 0], place[:, 1], windows.shape[1]
                )
                key, count = layer * memories + latent, min(TOP, len(window))
                best[key, :count], sentence[key, :count] = activations[:TOP].amax(1), window[:TOP, 0]
        return best.numpy(), sentence.numpy()

    return find


def by_topk(coefficients: Callable[[Tensor], list[Tensor]], memories: int) -> Find:
    """Finds triggers with a library that returns the coefficients of a batch, by layer [row, position, memory].

    torch.topk compares the 50 best of each memory with those of the next batch. It runs along the row of the memory, which
    takes half the time that it takes along the other dimension.
    """

    def find(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
        best, sentence = torch.zeros(memories, TOP), torch.full((memories, TOP), -1)
        competing = CompetingPrefixes(corpus, once=False)
        for rows in batches_of(competing, Batching()):
            lengths = corpus.lengths[rows]
            padded = torch.from_numpy(np.flatnonzero(np.arange(lengths.max())[None] >= lengths[:, None]))
            peaks = []
            for layer in coefficients(ids_of(corpus, rows)):
                if len(padded):
                    layer.view(-1, layer.shape[-1])[padded] = 0
                peaks.append(layer[:, 1:].amax(1).T)
            best, order = torch.cat([best, torch.cat(peaks)], 1).topk(TOP, 1, sorted=False)
            sentence = torch.cat([sentence, torch.from_numpy(rows).expand(memories, -1)], 1).gather(1, order)
        best, order = best.sort(1, descending=True)
        return best.numpy(), torch.where(best > 0, sentence.gather(1, order), -1).numpy()

    return find


def find_maxima(scratch: Path, folder: Path, corpus: Corpus, name: str) -> np.ndarray:
    """The highest coefficient of every key in every sentence [sentence, memory], by the bare model; computed once."""
    path = scratch / "maxima" / f"{folder.parent.name}-{name}.npy"
    if not path.exists():
        model, peaks = _checkpoint(folder).transformer, []
        for block in model.h:
            block.mlp.c_proj.register_forward_pre_hook(lambda _, tensors: peaks.append(tensors[0][0, 1:].amax(0)))
        for sentence in range(len(corpus)):
            model(ids_of(corpus, [sentence]), use_cache=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, torch.cat(peaks).view(len(corpus), -1).numpy())
    return np.load(path)


def check(coefficient: np.ndarray, sentence: np.ndarray, maxima: np.ndarray) -> None:
    """Compares triggers (see `Find`) with the maxima of all sentences (see `find_maxima`).

    Each coefficient must be the maximum of its sentence, and the maximum of this rank, to within `TIED`: of tied tokens and
    sentences ffkv takes the first of the corpus. `TOLERANCE` is for libraries that sum in different orders.

    Raises:
        RuntimeError: a coefficient is wrong, or a key has a sentence twice.
    """
    highest = np.partition(-maxima, TOP - 1, axis=0)[:TOP]
    ranked = np.maximum(-np.sort(highest, axis=0), 0).T
    of_sentence = np.where(sentence < 0, 0, maxima[sentence, np.arange(maxima.shape[1])[:, None]])
    ascending = np.sort(sentence, axis=1)
    twice = (ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0)
    for wrong in (
        np.abs(coefficient - ranked) > TOLERANCE + TIED * ranked,
        np.abs(coefficient - of_sentence) > TOLERANCE + TIED * of_sentence,
        twice,
    ):
        if wrong.any():
            raise RuntimeError(f"{int(wrong.any(1).sum())} keys have wrong triggers")


def _checkpoint(folder: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(folder.parent / "checkpoint").eval()


LIBRARIES: dict[str, Callable[..., Find]] = {
    "ffkv": with_ffkv,
    "TransformerLens": with_transformer_lens,
    "TransformerLens without logits": partial(with_transformer_lens, logits_to_keep=1),
    "nnsight": with_nnsight,
    "delphi": with_delphi,
}
NOTES = {
    "TransformerLens without logits": "an argument that TransformerLens passes on tells transformers to compute the logits of one token only",
    "delphi": "its cache needs sentences of one length; it keeps all positive coefficients to the end",
}


def compare(shape: Shape, text: str, peers: tuple[str, ...], **arguments: int) -> list[Comparison]:
    """ffkv beside some peers, from the same runs. `text` describes the sentences, `arguments` are those of `find`."""
    contenders = {"ffkv": Contender(f"{__name__}:find", {"shape": shape, "library": "ffkv", **arguments})}
    for peer in peers:
        contenders[peer] = Contender(f"{__name__}:find", {"shape": shape, "library": peer, **arguments}, PEERS)
    return [
        Comparison(
            f"triggers beside {peer}",
            f"{shape}, {text}",
            contenders,
            cpu_ratio(peer, "ffkv"),
            1.0,
            "times the CPU time of ffkv",
            at_most=False,
            rounds=2,
            note=NOTES.get(peer, ""),
        )
        for peer in peers
    ]


COMPARISONS = [
    *compare(GPT2, "150 sentences", ("TransformerLens", "TransformerLens without logits", "nnsight"), sentences=150),
    *compare(SMALL, "512 sentences of 32 tokens", ("delphi",), sentences=512, length=32),
]
