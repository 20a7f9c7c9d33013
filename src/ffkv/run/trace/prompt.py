"""What is asked of the model: the tokens that it reads, of one prompt or of many texts, and memories that are switched off or scaled."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.corpus.encode import behind, grouped, replace_surrogates, tokenize
from ffkv.run.results.collections import expand
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory_name import check_memory, memory_name, parse_memory_name, whole_number
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_files import RunFiles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ffkv.run.results.run_model import RunModel


class Prompt(NamedTuple):
    """A prompt as the model reads it."""

    text: str  # the prompt, with U+FFFD in place of lone surrogates, which UTF-8 cannot encode
    ids: np.ndarray  # ids of all tokens [token]
    tokens: pd.DataFrame  # see `Trace.tokens`
    note: str  # see `Trace.note`


def check_prompt(run: Run, text: Any) -> None:
    """Refuses what is no run, and a prompt that is no text, before the model is loaded. Raises UserError if it is none."""
    check_run(run)
    if not isinstance(text, str):
        raise UserError(f"The prompt is {text!r}. Write it as text.")


def read_prompt(run: Run, tokenizer: "PreTrainedTokenizerBase", text: str) -> Prompt:
    """Encodes a prompt as the corpus encodes a sentence, to the letter: no white space is collapsed, nothing is split.

    Raises UserError if the prompt is empty, and nothing precedes it; if it does not fit the model's context; or if the tokenizer knows
    a token that the model does not know.
    """
    beginning, context = run.corpus("train").bos, run.anatomy.context
    whole_text = replace_surrogates(text)
    ids, ends, _, text = next(tokenize([whole_text], tokenizer, list(beginning)))
    if not len(ids) and not beginning:
        raise UserError(
            f"The prompt is empty, and {run.name} puts no token in front of a text, so the model has nothing to read."
            " Write a prompt of one token or more."
        )
    whole = behind(beginning, ids)
    if len(whole) > context:
        inside = f", {len(beginning)} in front of it included" if beginning else ""
        raise UserError(
            f"The prompt has {len(whole)} tokens{inside}; {run.anatomy.checkpoint} reads at most {context}."
        )
    if whole.max() >= len(run.vocabulary):
        raise UserError(
            f"The prompt has a token with the id {whole.max()}, and {run.anatomy.checkpoint} knows"
            f" {len(run.vocabulary)} tokens only. Write the prompt without it."
        )
    tokens = pd.DataFrame(
        {
            "position": np.arange(len(whole)),
            "token_id": whole,
            "token": [run.vocabulary[number] for number in whole.tolist()],
            "text": [""] * len(beginning) + run.corpus("train").texts_of(text, ids, ends),
            "beginning": np.arange(len(whole)) < len(beginning),
        }
    )
    note = str(run.files.corpora["train"]["beginning"])
    if not len(ids):
        names = " ".join(run.vocabulary[number] for number in beginning)
        note = f"The prompt is empty: the model reads {names} only, which precedes every sentence."
    return Prompt(whole_text, whole, tokens, note)


def place(position: int | None, count: int) -> int:
    """Returns the position of the chosen token among `count` tokens. None: the last one; negative: from the end.

    Raises UserError if there is no such token.
    """
    wanted = -1 if position is None else position
    if not -count <= wanted < count:
        raise UserError(
            f"There is no position {wanted}. The model reads {count} tokens: positions 0 to {count - 1}, or -1 to"
            f" -{count} from the end."
        )
    return wanted % count


def read_changes(off: Sequence[str], scale: Sequence[str], files: RunFiles) -> dict[tuple[int, int], float]:
    """Returns the factor of each memory (its layer and its number) that is changed, in the order of their names.

    `off` and `scale`: see `TraceOptions`. Raises UserError if a name or a factor is malformed, there is no such memory or list, or a
    memory is changed twice.
    """
    factors: dict[tuple[int, int], float] = {}
    named = [*((name, 0.0) for name in off), *map(_named_factor, scale)]
    for name, factor in ((name, factor) for given, factor in named for name in expand(files, [given])):
        place = parse_memory_name(name)
        check_memory(*place, [layer.memories for layer in files.anatomy.layers])
        if place in factors:
            raise UserError(f"{memory_name(*place)} is changed twice. Name each memory once.")
        if not math.isfinite(factor):
            raise UserError(f"The factor of {memory_name(*place)} is {factor}. Write a finite number.")
        factors[place] = factor
    return factors


def _named_factor(text: str) -> tuple[str, float]:
    try:
        name, factor = text.rsplit(":", 1)
        return name, float(factor)
    except ValueError:
        message = f"{text!r} is not a memory with a factor. Write L3.17:2 to double the coefficient of L3.17."
        raise UserError(message) from None


class Text(NamedTuple):
    """A text as the model reads it."""

    number: int  # its place among the texts, from 0
    ids: np.ndarray  # ids of its tokens, without those in front of it [token]


def check_texts(run: Run, texts: Iterable[str | int]) -> None:
    """Refuses what is no run, and one text or no list, by a UserError before the model is loaded. Texts themselves are not looked at."""
    check_run(run)
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError(f"texts is {texts!r}. Write a list of texts, such as [{texts!r}].")


def read_texts(run: Run, model: "RunModel", texts: Iterable[str | int]) -> Iterator[Text]:
    """Encodes texts to the letter, one at a time. A number is that of a sentence of the train split.

    Raises UserError if one is neither a text nor a number, if there is no such sentence, or as `read_prompt`.
    """
    corpus = run.corpus("train")
    for number, text in enumerate(texts):
        if isinstance(text, str):
            yield Text(number, read_prompt(run, model.tokenizer, text).ids[len(corpus.bos) :])
            continue
        sentence = whole_number(f"Text {number}, which is no text and so must be a sentence of the train split,", text)
        if not 0 <= sentence < len(corpus):
            raise UserError(f"There is no sentence {sentence}. The train split has sentences 0 to {len(corpus) - 1}.")
        yield Text(number, corpus.ids(sentence).astype(np.int64))


def pieces(texts: Iterable[Text], most: int) -> Iterator[list[Text]]:
    """Groups texts, in their order, into pieces of at most `most` tokens, or of one text. There is one piece or more."""
    found = grouped(texts, most)
    yield next(found, [])
    yield from found


def index_of(run: Run, texts: Sequence[Text]) -> pd.MultiIndex:
    """Returns the place of each token of some texts, see `coefficients`: text, position and token [token of all texts]."""
    first, counts = len(run.corpus("train").bos), [len(text.ids) for text in texts]
    ids = np.concatenate([np.zeros(0, np.int64), *(text.ids for text in texts)])
    number = np.repeat(np.array([text.number for text in texts], np.int64), np.array(counts, np.int64))
    position = np.concatenate([np.zeros(0, np.int64), *(first + np.arange(count) for count in counts)])
    tokens = pd.Index(token_texts(ids, run.vocabulary), dtype="str")
    return pd.MultiIndex.from_arrays([number, position, tokens], names=["text", "position", "token"])
