"""Prompts as the model reads them: token ids, answers of one token, and which prompts cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.prompt_file import Prompt, Said
from ffkv.branches.behaviours.words import (
    CHOOSE,
    DOUBLED,
    EMPTY,
    ESTIMATE,
    LONG,
    MERGED,
    SAME,
    SEVERAL,
    UNDRAWN,
    UNEQUAL,
    UNKNOWN,
)
from ffkv.corpus.encode import replace_surrogates, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_TOKEN = -1


class Encoded(NamedTuple):
    """A prompt as the model reads it."""

    clean: np.ndarray  # ids of its tokens, with what precedes every sentence [token]
    patch: np.ndarray  # those of the other prompt of a pair; empty without one [token]
    answer: int  # id of the answer; -1 in lists
    wrong: int
    unused: str  # why it is not used; "" if it is
    tokens: int = 1  # number of tokens at its end at which memories are patched


def encode_prompts(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    beginning: Sequence[int],
    vocabulary: int,
    context: int,
    render: Callable[[Said], str],
    everywhere: bool = False,
) -> list[Encoded]:
    """Encodes prompts to the letter. An answer is the token by which it continues its prompt.

    Args:
        beginning: ids that precede every sentence.
        vocabulary: number of tokens that the model knows.
        context: number of tokens that it reads at most.
        render: turns what a prompt says into text: a chat, by its template.
        everywhere: whether memories are patched at all tokens behind the beginning, else at the last one.
    """

    def ids_of(texts: list[str]) -> list[np.ndarray]:
        if not texts:
            return []
        found = tokenize([replace_surrogates(text) for text in texts], tokenizer, list(beginning))
        return [np.concatenate([np.asarray(beginning, np.int64), ids.astype(np.int64)]) for ids, *_ in found]

    clean = [render(prompt.clean) for prompt in prompts]
    ids = ids_of(clean)
    paired = [number for number, prompt in enumerate(prompts) if prompt.patch is not None]
    of_pairs = dict(zip(paired, ids_of([render(prompts[number].patch or "") for number in paired]), strict=True))
    answered = [number for number, prompt in enumerate(prompts) if prompt.answer]
    continued = {
        name: dict(zip(answered, ids_of([clean[n] + getattr(prompts[n], name) for n in answered]), strict=True))
        for name in ("answer", "wrong")
    }
    seen: set[tuple] = set()
    encoded, first = [], len(beginning) if everywhere else 0
    for number, own in enumerate(ids):
        patch = of_pairs.get(number, np.zeros(0, np.int64))
        (answer, why), (wrong, why_wrong) = (_answer(own, continued[name].get(number)) for name in ("answer", "wrong"))
        unused = why or why_wrong or (SAME if answer == wrong != NO_TOKEN else "")
        if max(own.max(initial=0), patch.max(initial=0), answer, wrong) >= vocabulary:
            unused = UNKNOWN
        elif max(len(own), len(patch)) >= context:
            unused = LONG
        elif min(len(own), len(patch) if number in of_pairs else len(own)) <= first:
            unused = EMPTY
        elif everywhere and number in of_pairs and len(own) != len(patch):
            unused = UNEQUAL
        name = (own.tobytes(), patch.tobytes(), answer, wrong, prompts[number].positive)
        unused = unused or (DOUBLED if name in seen else "")
        seen.add(name)
        encoded.append(Encoded(own, patch, answer, wrong, unused, len(own) - first if everywhere else 1))
    return encoded


def _answer(prompt: np.ndarray, continued: np.ndarray | None) -> tuple[int, str]:
    """Returns the token by which an answer continues a prompt, and why there is none."""
    if continued is None:
        return NO_TOKEN, ""
    if len(continued) <= len(prompt) or not np.array_equal(continued[: len(prompt)], prompt):
        return NO_TOKEN, MERGED
    return (int(continued[-1]), "") if len(continued) == len(prompt) + 1 else (NO_TOKEN, SEVERAL)


def draw(unused: Sequence[str], positive: np.ndarray, labels: Sequence[str], count: int, seed: int) -> np.ndarray:
    """Draws up to `count` of the prompts that can be used, and puts one half of them into each part.

    Prompts of one list and one label are put into the two halves in turn, in random order. Of two lists, each gets half of the
    places.

    Args:
        unused: why each prompt cannot be used; "" if it can [prompt].
        positive: whether it is of the first of two lists [prompt].
    Returns:
        `CHOOSE`, `ESTIMATE`, or "" for a prompt that is not drawn [prompt].
    """
    generator = random_stream(seed, Purpose.BEHAVIOUR_PROMPTS)
    order = generator.permutation(np.flatnonzero([not why for why in unused]))
    lists = [order[positive[order]], order[~positive[order]]]
    room = count if min(map(len, lists)) == 0 else count // 2
    drawn = np.concatenate([own[:room] for own in lists])
    part = np.full(len(unused), "", object)
    turn: dict[tuple[bool, str], int] = {}
    for number in drawn.tolist():
        group = (bool(positive[number]), labels[number])
        # Groups begin with either half in turn, so that many small groups make equal halves.
        turn.setdefault(group, len(turn) % 2)
        part[number] = (CHOOSE, ESTIMATE)[turn[group] % 2]
        turn[group] += 1
    return part


def prompt_rows(
    prompts: Sequence[Prompt], encoded: Sequence[Encoded], part: Iterable[str], render: Callable[[Said], str]
) -> list[dict]:
    """Returns the rows of the table `PROMPTS`, without the behaviour. `part`: as `draw` returns it [prompt]."""
    return [
        {
            "prompt": number,
            "line": prompt.line,
            "label": prompt.label,
            "positive": prompt.positive,
            "part": half,
            "unused": own.unused or ("" if half else UNDRAWN),
            "text": render(prompt.clean),
            "clean": own.clean.tolist(),
            "patch": own.patch.tolist(),
            "answer": own.answer,
            "wrong": own.wrong,
            "tokens": own.tokens,
        }
        for number, (prompt, own, half) in enumerate(zip(prompts, encoded, part, strict=True))
    ]
