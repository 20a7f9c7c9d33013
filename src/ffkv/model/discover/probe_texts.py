"""The texts that every model is calibrated and proven on, and which token in front of them a model reads best."""

import re
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.base.errors import UserError
from ffkv.model.checkpoint.config import DEFAULT_CONTEXT, configured_context, rotary_bounds
from ffkv.model.tap.hooks import forward

PASSAGES = (
    "The harbour was quiet when the first boats came in. A woman on the quay counted the crates, wrote the number in a "
    "small green book, and asked the captain whether the storm of Tuesday night had cost him any of his nets.",
    "In 1897 the committee published a report of 214 pages on the water supply of the city. It recommended three new "
    "reservoirs, of which only one was ever built, because the council could not agree on how to pay for the others.",
)
MAX_TOKENS = 40  # of a sentence that is run
# Weights times tokens of the longest row: some seconds on a CPU.
LONG_WORK = 5e10
MIN_TOKENS = 3
MIN_DISTINCT = 8  # different tokens that a passage must have to prove anything
# Names of special tokens that stand between texts, in many vocabularies.
BETWEEN = re.compile(r"<\|?(endoftext|end_of_text|begin_of_text|startoftext|bos|eos|/?s)\|?>|\[(BOS|EOS)\]")
DIGITS = 3  # of a loss: differences below are rounding


def passages(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Returns the ids of two passages, each cut into two sentences of equal length [2, token].

    Raises UserError if the tokenizer has ids that the model does not embed, or the model reads too few tokens.
    """
    embedded, largest = embedded_tokens(model), max(tokenizer.get_vocab().values(), default=0)
    if largest >= embedded:
        raise UserError(
            f"the tokenizer has ids up to {largest}, but the model embeds only {embedded} tokens: it is the tokenizer of another model, or tokens were added to it alone"
        )
    first, second = (_two_sentences(tokenizer, passage, model) for passage in PASSAGES)
    return first, second


def _two_sentences(tokenizer: PreTrainedTokenizerFast, passage: str, model: PreTrainedModel) -> Tensor:
    ids = tokenizer(passage, add_special_tokens=False, verbose=False)["input_ids"]
    if len(set(ids)) < MIN_DISTINCT:  # a tokenizer that knows no English: any of its tokens will do
        generator = torch.Generator().manual_seed(len(passage))
        known = min(len(tokenizer), embedded_tokens(model))
        ids = torch.randint(known, (2 * MAX_TOKENS,), generator=generator).tolist()
    config = model.config.get_text_config(decoder=True)
    context = configured_context(config) or MAX_TOKENS
    context = min([context, *rotary_bounds(config).values()])
    tokens = min(len(ids) // 2, MAX_TOKENS, context)
    if tokens < MIN_TOKENS:
        raise UserError(f"it reads {context} tokens at a time: at least {MIN_TOKENS} are needed to prove anything")
    return torch.tensor(ids[: 2 * tokens]).reshape(2, tokens)


def long_row(model: PreTrainedModel, text: Tensor, context: int) -> np.ndarray:
    """Returns the tokens of a text over and over [token]: a whole context, or as many as take a few seconds."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return np.resize(text.flatten().numpy(), min(context, max(MAX_TOKENS, int(LONG_WORK / weights))))


def embedded_tokens(model: PreTrainedModel) -> int:
    """Returns the number of tokens that a model embeds."""
    weight = getattr(model.get_input_embeddings(), "weight", None)
    return weight.shape[0] if weight is not None else model.config.get_text_config(decoder=True).vocab_size


def context_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Returns the longest input in tokens: as the config says, else the tokenizer, else 2048.

    It ends where rotary angles would follow the longest row of a pass.
    """
    config = model.config.get_text_config(decoder=True)
    length = configured_context(config)
    if length is None:
        return tokenizer.model_max_length if tokenizer.model_max_length < 10**6 else DEFAULT_CONTEXT
    embedded = model.get_input_embeddings()
    tables = (each for each in model.modules() if isinstance(each, nn.Embedding) and each is not embedded)
    # RoBERTa counts positions from the row behind the padding's on: the others have no token.
    padding = (each.padding_idx for each in tables if each.num_embeddings == length and each.padding_idx is not None)
    return min([length - next(padding, -1) - 1, *rotary_bounds(config).values()])


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
