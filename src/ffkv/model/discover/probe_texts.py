"""The texts that every model is calibrated and proven on."""

import torch
from torch import Tensor, nn

from ffkv.errors import UserError

PASSAGES = (
    "The harbour was quiet when the first boats came in. A woman on the quay counted the crates, wrote the number in a "
    "small green book, and asked the captain whether the storm of Tuesday night had cost him any of his nets.",
    "In 1897 the committee published a report of 214 pages on the water supply of the city. It recommended three new "
    "reservoirs, of which only one was ever built, because the council could not agree on how to pay for the others.",
)
LONGEST = 40  # tokens of a passage that are run
SHORTEST = 3
DISTINCT = 8  # different tokens that a passage must have to prove anything


def passages(model: nn.Module, tokenizer) -> tuple[Tensor, Tensor]:
    """Two passages as ids, each as two sentences of equal length [2, token].

    Raises:
        UserError: see `check_vocabulary`.
    """
    check_vocabulary(model, tokenizer)
    first, second = (_two_sentences(tokenizer, passage, model) for passage in PASSAGES)
    return first, second


def check_vocabulary(model: nn.Module, tokenizer) -> None:
    """Refuses a tokenizer that knows ids which the model does not embed.

    Raises:
        UserError: names both numbers.
    """
    embedded, largest = embedded_tokens(model), max(tokenizer.get_vocab().values(), default=0)
    if largest >= embedded:
        raise UserError(
            f"the tokenizer has ids up to {largest}, but the model embeds only {embedded} tokens: it is the tokenizer of another model, or tokens were added to it alone"
        )


def _two_sentences(tokenizer, passage: str, model: nn.Module) -> Tensor:
    ids = tokenizer(passage, add_special_tokens=False, verbose=False)["input_ids"]
    if len(set(ids)) < DISTINCT:  # a tokenizer that knows no English: any of its tokens will do
        generator = torch.Generator().manual_seed(len(passage))
        ids = torch.randint(min(len(tokenizer), embedded_tokens(model)), (2 * LONGEST,), generator=generator).tolist()
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or LONGEST
    tokens = min(len(ids) // 2, LONGEST, context)
    if tokens < SHORTEST:
        raise UserError(f"it reads {context} tokens at a time: at least {SHORTEST} are needed to prove anything")
    return torch.tensor(ids[: 2 * tokens]).reshape(2, tokens)


def embedded_tokens(model: nn.Module) -> int:
    """How many tokens a model embeds."""
    weight = getattr(model.get_input_embeddings(), "weight", None)
    return weight.shape[0] if weight is not None else model.config.get_text_config(decoder=True).vocab_size


def context_of(model: nn.Module, tokenizer) -> int:
    """The longest input in tokens: as the config says, else the tokenizer, else 2048."""
    config = model.config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"):
        if isinstance(length := getattr(config, name, None), int) and length > 0:
            return length - _reserved_positions(model, length)
    return tokenizer.model_max_length if tokenizer.model_max_length < 10**6 else 2048


def _reserved_positions(model: nn.Module, length: int) -> int:
    """How many rows of the position embedding no token has: RoBERTa counts on from the padding's."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    paddings = (
        table.padding_idx
        for table in tables
        if table.num_embeddings == length and table is not model.get_input_embeddings()
    )
    return next((padding + 1 for padding in paddings if padding is not None), 0)
