"""What later steps read of the first two: the prompts that are used, as token ids, and what memories do on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import LAYER_OFFSET, dataset
from ffkv.base.steps import Part
from ffkv.branches.behaviours.words import LISTS, PAIRS, PROMPTS

KIND = "behaviour states"
NO_TOKEN = -1
BLOCK = 32  # prompts whose batches are made together, so that shards change no number
OF_PROMPT: dict[str, Any] = {"dimensions": "prompt", "dtype": "float32", "unit": "1", "odd": True}
CHUNKS = {"prompt": 64, "memory": "largest_layer"}
OF_MEMORY: dict[str, Any] = {"dimensions": "prompt memory", "dtype": "float32", "unit": "1", "chunks": CHUNKS}


class Encoded(NamedTuple):
    """A prompt as the model reads it, or one of its rows.

    Answers of several tokens are teacher-forced: the model reads the prompt, and each answer as far as the token that is asked for. Each
    such text is a row. The difference of a prompt is the sum of those of its rows, `Head.differences` of `answer` and `wrong`.
    """

    clean: np.ndarray  # ids of its tokens, with what precedes every sentence [token]
    patch: np.ndarray  # those of the other prompt of a pair; empty without one [token]
    answer: int  # id of the first token of the answer; -1 in lists, and where a row is about the wrong answer alone
    wrong: int  # that of the wrong answer; -1 in lists, and where a row is about the answer alone
    unused: str  # why it is not used; "" if it is
    tokens: int = 1  # number of tokens at which memories are patched, the last ones but those of an answer
    number: int = 0  # its number in the table `PROMPTS`; of a prefix, that among the sampled ones
    answer_rest: Sequence[int] = ()  # ids of the further tokens of the answer; none in a row
    wrong_rest: Sequence[int] = ()  # those of the wrong answer
    after: int = 0  # number of tokens of an answer at the end of a row, at which nothing is patched; 0 in the first row

    def rows(self) -> list["Encoded"]:
        """Returns the rows of a prompt: that of the first tokens of both answers, then one of each further token."""
        made = [first := self._replace(answer_rest=(), wrong_rest=())]
        for wrong, tokens in enumerate(((self.answer, *self.answer_rest), (self.wrong, *self.wrong_rest))):
            for n, token in enumerate(tokens[1:], 1):
                clean, patch = (np.array([*ids, *tokens[:n]], np.int64) for ids in (self.clean, self.patch))
                asked = (NO_TOKEN, token) if wrong else (token, NO_TOKEN)
                patch = patch if len(self.patch) else self.patch
                made.append(Encoded(clean, patch, *asked, first.unused, first.tokens, first.number, after=n))
        return made


def used(prompts: pd.DataFrame) -> pd.DataFrame:
    """Returns the prompts that are used, then prefixes, from the table `PROMPTS`."""
    return prompts[prompts["part"] != ""].reset_index(drop=True)


def first(prompts: pd.DataFrame, part: str, count: int) -> pd.DataFrame:
    """Returns the first prompts of a half, in the order in which they are taken; below each other as they are in the file."""
    return prompts[prompts["part"] == part].nsmallest(count, "order").sort_index()


def encoded(prompts: pd.DataFrame) -> list[Encoded]:
    """Returns the rows of prompts, those of one below each other, from the table `PROMPTS`."""
    names = ("answer", "wrong", "unused", "tokens", "prompt", "answer_rest", "wrong_rest")
    ids = ([np.asarray(own, np.int64) for own in prompts[name]] for name in ("clean", "patch"))
    return [row for each in map(Encoded, *ids, *(prompts[name].tolist() for name in names)) for row in each.rows()]


def owners(rows: Sequence[Encoded]) -> np.ndarray:
    """Returns the place of each row's prompt among the prompts [row]."""
    return np.cumsum([each.after == 0 for each in rows], dtype=np.int64) - 1


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the members with the largest values, descending; of equal ones the first. `values` [member]."""
    return np.argsort(-values, kind="stable")[:count]


def rows_of_shard(count: int, part: Part) -> range:
    """Returns the prompts of a shard: whole blocks."""
    blocks = part.of(-(-count // BLOCK))
    return range(blocks.start * BLOCK, min(blocks.stop * BLOCK, count))


def accuracy_of(answers: pd.DataFrame) -> float:
    """Returns the share of prompts on which the answer has a higher logit than the wrong answer; NaN in lists."""
    known = answers["difference"].dropna()
    return float((known > 0).mean()) if len(known) else np.nan


def kind_of(prompts: pd.DataFrame) -> str:
    """Returns what a file of prompts has, from the table `PROMPTS`."""
    if (prompts["patch"].map(len) > 0).any():
        return PAIRS
    return LISTS if (prompts["answer"] == NO_TOKEN).all() and not prompts["positive"].all() else PROMPTS


@dataclass(frozen=True, kw_only=True)
class PromptStates:
    """What `behaviours/<name>/states/<shard>.h5` holds. Quantities by memory are sums over the tokens of each prompt that are
    patched: the last one, or all (the setting `positions`)."""

    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about=LAYER_OFFSET)
    norm: np.ndarray = dataset("memory", "float32", unit="1", about="length of the value")
    prompt: np.ndarray = dataset("prompt", "int32", unit="1", about="number of the prompt in `prompts.parquet`")
    difference: np.ndarray = dataset(
        **OF_PROMPT,
        about="logit of the answer minus that of the wrong answer; of several tokens, their log-probabilities; NaN in lists",
    )
    patch_difference: np.ndarray = dataset(
        **OF_PROMPT, about="the same on the other prompt of the pair; NaN without one"
    )
    probability: np.ndarray = dataset(**OF_PROMPT, about="probability of the answer, of all its tokens; NaN in lists")
    contribution: np.ndarray = dataset(
        **OF_MEMORY, about="s m ‖v‖, clean - patch; without pairs clean - mean; in lists clean alone"
    )
    coefficient: np.ndarray = dataset(**OF_MEMORY, about="the same of m alone")
    change: np.ndarray = dataset(
        **OF_MEMORY, about="by how much s m changes when the memory is patched, s held, without its sign; 0 in lists"
    )
    screen: np.ndarray = dataset(
        **OF_MEMORY, about="by how much `difference` falls when the memory is patched, if all is linear; 0 in lists"
    )
    frozen_screen: np.ndarray = dataset(
        **OF_MEMORY,
        about="the same with factors of norms and patterns of attention held; NaN if the model cannot hold them, or `frozen` is false; 0 in lists",
        odd=True,
    )
    attributes: dict[str, Any]  # the attributes of the file


def write_states(path: Path | str, states: PromptStates) -> None:
    """Writes `behaviours/<name>/states/<shard>.h5`."""
    sizes = {"largest_layer": int(np.diff(states.layer_offset).max())}
    with hdf5.create(path, KIND, states.attributes) as file:
        datasets.write(file, states, sizes)


def join_states(parts: Iterable[Path | PromptStates], belongs_to: Mapping[str, Any]) -> PromptStates:
    """Puts the states of all shards below each other, each from its file or from memory."""
    read: list[PromptStates] = []
    for part in parts:
        if isinstance(part, Path):
            with hdf5.open(part, KIND, belongs_to) as file:
                part = datasets.read(file, PromptStates, attributes=dict(file.attrs))
        read.append(part)
    names = {field.name for field in fields(PromptStates)} - {"layer_offset", "norm", "attributes"}
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in read]) for name in names}
    return replace(read[0], **joined)
