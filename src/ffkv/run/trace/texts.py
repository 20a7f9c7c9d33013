"""Many texts that the model reads: own ones, or sentences of the train split."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory_name import whole_number
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.prompt import read_prompt


class Text(NamedTuple):
    """A text as the model reads it."""

    number: int  # its place among the texts, from 0
    ids: np.ndarray  # ids of its tokens, without those in front of it [token]


def check_texts(run: Run, texts: Iterable[str | int]) -> None:
    """Refuses what cannot be read, before the model is loaded. The texts themselves are not looked at.

    Raises:
        UserError: `run` is no run; or `texts` is one text, or no list.
    """
    check_run(run)
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError(f"texts is {texts!r}. Write a list of texts, such as [{texts!r}].")


def read_texts(run: Run, model: RunModel, texts: Iterable[str | int]) -> Iterator[Text]:
    """Encodes texts to the letter, one at a time. A number is that of a sentence of the train split.

    Raises:
        UserError: one is neither a text nor a number, there is no such sentence, or a text cannot be read, see
            `read_prompt`.
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
    piece: list[Text] = []
    tokens = 0
    for text in texts:
        if piece and tokens + len(text.ids) > most:
            yield piece
            piece, tokens = [], 0
        piece.append(text)
        tokens += len(text.ids)
    yield piece


def index_of(run: Run, texts: Sequence[Text]) -> pd.MultiIndex:
    """Returns the place of each token of some texts, see `coefficients`: text, position and token [token of all texts]."""
    first, counts = len(run.corpus("train").bos), [len(text.ids) for text in texts]
    ids = np.concatenate([np.zeros(0, np.int64), *(text.ids for text in texts)])
    number = np.repeat(np.array([text.number for text in texts], np.int64), np.array(counts, np.int64))
    position = np.concatenate([np.zeros(0, np.int64), *(first + np.arange(count) for count in counts)])
    tokens = pd.Index(token_texts(ids, run.vocabulary), dtype="str")
    return pd.MultiIndex.from_arrays([number, position, tokens], names=["text", "position", "token"])
