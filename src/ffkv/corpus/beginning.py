"""What the model reads in front of every sentence.

Without a first token of its own a sentence begins with a word, and many models use the first position as a resting
place of their attention: its states are outliers, whatever word is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.corpus.chat import Render, render_one

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Beginning(NamedTuple):
    """What stands in front of every sentence."""

    ids: list[int]  # the token ids; none for nothing
    reason: str  # one sentence for log and report


def find_beginning(
    tokenizer: PreTrainedTokenizerBase,
    bos: str,
    configured: int | None = None,
    render: Render | None = None,
    losses: Mapping[str, float] | None = None,
) -> Beginning:
    """Finds the ids that the model reads in front of every sentence.

    Args:
        tokenizer: of the model.
        bos: the setting `corpus.bos`. "auto": what the tokenizer puts there itself; if it puts nothing there, the token
            with the lowest of the `losses`; without any, its BOS token; if it has none, the token that separates
            documents. In front of chats only what their template writes, which writes all special tokens that the model
            expects. "always": its BOS token. "never": nothing. Else a token, by its name.
        configured: the BOS token that the model's config names. Models without BOS name the token there that separates
            their documents. It counts only if the tokenizer has it as a special token.
        render: turns a chat into text, see `chat_renderer`; None if the corpus contains text.
        losses: of the model behind each candidate, by its name, see `ffkv.model.discover.beginnings`.
    Raises:
        UserError: `bos` is "always", and the tokenizer has no BOS token; or it names no token of the tokenizer; or it is
            "auto", and the ids of a text change when the tokenizer adds special tokens.
    """
    if bos == "never":
        return Beginning([], "Nothing precedes a sentence, as corpus.bos says.")
    if bos == "always":
        if tokenizer.bos_token_id is None:
            raise UserError("corpus.bos is 'always', but the tokenizer has no BOS token: use 'auto' or 'never'.")
        reason = f"{tokenizer.bos_token} precedes every sentence, as corpus.bos says."
        return Beginning([tokenizer.bos_token_id], reason)
    if bos != "auto":
        if bos not in tokenizer.get_vocab():
            special = ", ".join(map(str, tokenizer.all_special_tokens)) or "none"
            raise UserError(f"corpus.bos is '{bos}', which the tokenizer does not have. Its special tokens: {special}.")
        return Beginning([tokenizer.get_vocab()[bos]], f"{bos} precedes every sentence, as corpus.bos says.")
    found = _automatic_beginning(tokenizer, configured, losses if render is None else None)
    if render is None:
        return found
    ids = tokenizer(render_one(render), add_special_tokens=False)["input_ids"]
    if found.ids and ids[: len(found.ids)] == found.ids:
        names = " ".join(map(str, tokenizer.convert_ids_to_tokens(found.ids)))
        return Beginning(found.ids, f"{names} precedes every sentence, once: the chat template writes it.")
    return Beginning([], "Nothing precedes a sentence but what the chat template writes.")


def _automatic_beginning(
    tokenizer: PreTrainedTokenizerBase, configured: int | None, losses: Mapping[str, float] | None
) -> Beginning:
    """Returns what "auto" puts in front of every text."""
    if ids := _ids_in_front(tokenizer):
        names = " ".join(map(str, tokenizer.convert_ids_to_tokens(ids)))
        return Beginning(ids, f"{names} precedes every sentence: the tokenizer puts it there.")
    if losses:
        best = min(losses, key=lambda name: losses[name])  # the first of equal ones
        shown = ", ".join(f"{name} {loss:g}" for name, loss in losses.items())
        return Beginning(
            [tokenizer.get_vocab()[best]],
            f"{best} precedes every sentence: of the tokens that may, it gives the lowest mean loss on the passages of the"
            f" proof ({shown} nats per token). corpus.bos can name another one.",
        )
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    if tokenizer.bos_token_id is not None:
        chosen, what = tokenizer.bos_token_id, "the BOS token"
    elif configured in special:
        chosen, what = configured, "the BOS token of the config, which separates documents"
    elif tokenizer.eos_token_id is not None:
        chosen, what = tokenizer.eos_token_id, "the end-of-text token, which separates documents"
    else:
        return Beginning([], "Nothing precedes a sentence: the tokenizer has no token for it.")
    name = tokenizer.convert_ids_to_tokens(chosen)
    return Beginning(
        [chosen],
        f"{name} precedes every sentence: it is {what}. The tokenizer does not put it there itself; corpus.bos 'never'"
        " leaves it out.",
    )


def longest_sentence(context: int, bound: int, beginning: Beginning) -> int:
    """Maximum number of tokens of a sentence, without its beginning, if the model reads `context` tokens at a time.

    `bound`: the setting `corpus.context`. Raises UserError if fewer than two tokens are left.
    """
    most = min(context, bound or context)
    if most - len(beginning.ids) < 2:
        whose = "corpus.context" if bound and bound <= context else "the context of the model"
        raise UserError(
            f"{whose} is {most}, and a sentence of two tokens with the {len(beginning.ids)} in front of it has"
            f" {2 + len(beginning.ids)}. Set corpus.context to more, or corpus.bos to 'never'."
        )
    return most - len(beginning.ids)


def configured_bos(config: dict[str, Any]) -> int | None:
    """Returns the BOS token that a config.json names; None if it names none."""
    bos = (config.get("text_config") or config).get("bos_token_id")
    return bos if isinstance(bos, int) else None


def _ids_in_front(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the ids that the tokenizer itself puts in front of a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return special[:start]
    raise UserError("The tokenizer changes a text when it adds special tokens: set corpus.bos to 'always' or 'never'.")
