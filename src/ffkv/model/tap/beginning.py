"""Reading on from a beginning: the model reads what several sentences begin with once.

As in generation, the keys and values of attention of the beginning are kept, and the model reads the rest of each sentence
after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.identities import TOLERANCE
from ffkv.model.tap.hooks import relative_error
from ffkv.model.tap.tap import tap

if TYPE_CHECKING:
    from transformers import DynamicCache

PROBE, IDS = (2, 12), 500  # sentences and tokens that `can_read_on` tries; their ids are lower

KeysValues = list[tuple[Tensor, ...]]  # keys and values of each block [block][sentence, head, token, .]


def empty_cache() -> DynamicCache:
    """A cache that a forward pass fills with its keys and values. It takes all tokens of every block, also of a sliding window."""
    from transformers import DynamicCache

    return DynamicCache()


def keep_beginning(cache: DynamicCache, tokens: int) -> KeysValues:
    """The first `tokens` keys and values of every sentence of a filled cache."""
    blocks: list[Any] = cache.layers
    return [(block.keys[:, :, :tokens].clone(), block.values[:, :, :tokens].clone()) for block in blocks]


def join_beginnings(parts: Sequence[KeysValues]) -> KeysValues:
    """The beginnings of several batches, one batch behind the other."""
    return [tuple(torch.cat(tensors) for tensors in zip(*blocks, strict=True)) for blocks in zip(*parts, strict=True)]


def read_on(kept: KeysValues, rows: Tensor) -> DynamicCache:
    """A cache from which a forward pass reads on: with the beginning in each of some rows of those that were kept [sentence]."""
    cache = empty_cache()
    for number, (keys, values) in enumerate(kept):
        cache.update(keys[rows.to(keys.device)], values[rows.to(values.device)], number)
    return cache


def can_read_on(loaded: LoadedModel) -> bool:
    """Whether a model that reads on from a beginning has the coefficients that it has on whole sentences.

    Recurrent models do not, and some code of models keeps no keys and values. It is tried on random tokens.
    """
    sentences, tokens = PROBE
    if loaded.anatomy.context < tokens:
        return False
    generator, begin = torch.Generator().manual_seed(0), tokens // 2
    ids = torch.randint(min(loaded.anatomy.vocabulary, IDS), (sentences, tokens), generator=generator)
    ids[:, :begin] = ids[:1, :begin]
    ids = ids.to(loaded.device)
    try:
        cache = empty_cache()
        whole = _coefficients(loaded, ids, cache)
        kept = keep_beginning(cache, begin)
        rest = _coefficients(loaded, ids[:, begin:], read_on(kept, torch.zeros(sentences, dtype=torch.int64)))
    except Exception:  # whatever the code of a model meets that cannot do this
        return False
    allowed = TOLERANCE[loaded.anatomy.dtype]
    return all(relative_error(part, m[:, begin:]) < allowed for part, m in zip(rest, whole, strict=True))


def _coefficients(loaded: LoadedModel, ids: Tensor, cache: DynamicCache) -> list[Tensor]:
    """The coefficients of every layer on ids, read on from a cache [layer][sentence, token, memory]."""
    found: list[Tensor] = []

    def keep(_layer: Layer, _quantity: str, m: Tensor) -> None:
        found.append(m.float().clone())

    with tap(loaded.model, loaded.anatomy.layers, "m") as run:
        run(ids, keep, past_key_values=cache, use_cache=True)
    return found
