"""Measures which token in front of a sentence a model reads best, where its tokenizer puts none there itself."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.model.discover.probe_texts import embedded_tokens
from ffkv.model.tap.hooks import forward

# Names of special tokens that stand between texts, in many vocabularies.
BETWEEN = re.compile(r"<\|?(endoftext|end_of_text|begin_of_text|startoftext|bos|eos|/?s)\|?>|\[(BOS|EOS)\]")
DIGITS = 3  # of a loss: differences below are rounding


def measure_beginnings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, passages: Iterable[Tensor]
) -> dict[str, float]:
    """Returns the mean loss behind each token that may precede a sentence, in nats per token, by the token's name.

    The BOS token comes first; {} if the tokenizer puts a token there itself, or has fewer than two for it. A passage is
    ids of sentences of equal length [sentence, token].
    """
    plain, whole = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    candidates = _candidates(model, tokenizer)
    if whole[: len(plain)] != plain or len(candidates) < 2:
        return {}
    losses = {}
    for token in candidates:
        each = []
        for ids in passages:
            read = torch.cat([torch.full((len(ids), 1), token), ids[:, :-1]], dim=1)
            logits = forward(model, read).logits.float()
            each.append(cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none"))
        losses[str(tokenizer.convert_ids_to_tokens(token))] = round(torch.cat(each).mean().item(), DIGITS)
    return losses


def _candidates(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Returns the special tokens that begin, end or separate texts by their role, or by their name."""
    config = model.config.get_text_config(decoder=True)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    configured = [getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)]
    by_role = [tokenizer.bos_token_id, configured[0], tokenizer.eos_token_id, configured[1]]
    by_name = [number for number in sorted(special) if BETWEEN.fullmatch(str(tokenizer.convert_ids_to_tokens(number)))]
    found = dict.fromkeys(number for number in [*by_role, *by_name] if isinstance(number, int) and number in special)
    return [number for number in found if number < embedded_tokens(model)]
