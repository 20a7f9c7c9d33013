"""Explains memories and scores the explanations, by questions to one language model."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.apps.machine.answers import LONGEST_LABEL
from ffkv.apps.machine.asking import Answered, Asker, Cost
from ffkv.apps.machine.material import Place, choose_memories, read_texts
from ffkv.apps.machine.questions import Question, ask_by_label, ask_intruder, ask_label
from ffkv.apps.machine.scores import balanced_accuracy, correlation, intruder_accuracy, rates, summarize
from ffkv.apps.machine.settings import Task
from ffkv.apps.machine.texts import Example, Texts, batches_of, intruder_sets, pair_by_length, pair_by_word, shuffled
from ffkv.base.errors import UserError
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.annotation_tables import LABELS, SCORES
from ffkv.run.results.run import Run

SHOWN = 20  # trigger examples that are explained
PER_SET = 5  # texts per intruder question
SAME_WORD = "detection of the same word"
TYPICAL_LABEL = 60  # characters
LONG_CHARACTER = "\N{GRINNING FACE}"  # of four bytes
FEWEST_EXAMPLES = 6  # trigger examples of a memory that can be explained and scored


class Asked(NamedTuple):
    """A question about a memory, with the truth that its answer is compared with."""

    place: Place  # layer and memory
    label: str  # "own", "other" or "none": whose label the question holds
    question: Question
    truth: Any  # whether each text is a trigger example; or the coefficient of each text; or the place of the intruder


class Annotation(NamedTuple):
    """What a machine says about memories, and how good it is: tables of `ffkv.run.annotation_tables`, without annotator."""

    labels: pd.DataFrame  # `LABELS`
    by_memory: pd.DataFrame  # `SCORES`
    by_layer: pd.DataFrame  # `BY_LAYER`


def explain(run: Run, asker: Asker, task: Task) -> Annotation:
    """Explains memories from some of their trigger examples, and scores the explanations on the others.

    Raises UserError if no memory has enough trigger examples; and see `Asker.ask`.
    """
    texts = _texts(run, task)
    found = dict(zip(texts, asker.ask([ask_label(each.shown) for each in texts.values()], "labels"), strict=True))
    labels = {place: answered.value for place, answered in found.items() if answered.value is not None}
    asked = _scored(texts, labels, task)
    by_memory = _by_memory(asked, asker.ask([each.question for each in asked], "scores"))
    return Annotation(_labels(texts, found), by_memory, summarize(by_memory))


def estimate(run: Run, asker: Asker, task: Task) -> dict[str, Cost]:
    """Returns what `explain` would ask, per kind of question. Nothing is asked.

    Labels that are not known yet count with `TYPICAL_LABEL` characters in `Cost.about`, and with the most bytes that a
    label can have in `Cost.most`.
    """
    texts = _texts(run, task)
    questions = [ask_label(each.shown) for each in texts.values()]
    costs = []
    for character, length in (("x", TYPICAL_LABEL), (LONG_CHARACTER, LONGEST_LABEL)):
        labels = {}
        for number, (place, question) in enumerate(zip(texts, questions)):
            answered = asker.settle(question)
            stand_in = character * (length - len(str(number))) + str(number)  # each its own, as labels mostly are
            if answered is None or answered.value is not None:
                labels[place] = stand_in if answered is None else answered.value
        by_kind: dict[str, list[Question]] = {"label": questions}
        for each in _scored(texts, labels, task):
            by_kind.setdefault(each.question.kind, []).append(each.question)
        costs.append({kind: asker.cost(of_kind) for kind, of_kind in by_kind.items()})
    typical, longest = costs
    return {kind: cost._replace(most=longest[kind].most) for kind, cost in typical.items()}


def _texts(run: Run, task: Task) -> dict[Place, Texts]:
    """Returns the texts about the memories that have enough trigger examples."""
    places = choose_memories(run, task.memories, task.per_layer, task.seed)
    texts = dict(read_texts(run, places, SHOWN, task.seed))
    enough = {place: each for place, each in texts.items() if len(each.shown) + len(each.held_out) >= FEWEST_EXAMPLES}
    if not enough:
        raise UserError(
            f"None of {len(places)} memories has {FEWEST_EXAMPLES} trigger examples of different sentences and texts."
            " Name other memories by --memories."
        )
    return enough


def other_labels(labels: dict[Place, str]) -> dict[Place, str]:
    """Gives each memory the label of the next memory of its layer, or of any layer if it is alone in its own.

    A memory whose label all others share gets none.
    """
    others, ring = {}, sorted(labels)
    for number, place in enumerate(ring):
        after = [each for each in ring[number + 1 :] + ring[:number] if labels[each] != labels[place]]
        if after:
            others[place] = labels[min(after, key=lambda each: each[0] != place[0])]  # the layer first
    return others


def _scored(texts: dict[Place, Texts], labels: dict[Place, str], task: Task) -> list[Asked]:
    """Returns all questions but those for labels."""
    others = other_labels(labels) if task.baseline else {}
    asked: list[Asked] = []
    for place, each in texts.items():
        generator = random_stream(task.seed, Purpose.MACHINE_TEXTS, *place, 2)
        pairs = pair_by_length(each.held_out, each.silent, generator)
        all_pairs = pair_by_length([*each.shown, *each.held_out], each.silent, generator)
        for texts_of_set in intruder_sets(all_pairs, PER_SET, generator):
            examples, intrudes = zip(*texts_of_set)
            asked.append(Asked(place, "none", ask_intruder(examples), intrudes.index(True)))
        simulated = [*each.held_out[: task.pairs], *each.measured[: task.pairs]]
        items = {  # in a random order: so questions differ in how many trigger examples they hold
            "detection": _shuffled(pairs, task.pairs, generator),
            SAME_WORD: _shuffled(pair_by_word(each.held_out, each.silent, generator), task.pairs, generator),
            "fuzzing": _shuffled(pairs, task.pairs, generator),
            "simulation": shuffled([(example, example.coefficient) for example in simulated], generator),
        }
        for whose, of in (("own", labels), ("other", others)):
            for kind, of_kind in items.items() if place in of else ():
                for batch in batches_of(of_kind, task.per_question):
                    examples, truths = zip(*batch)
                    asked.append(Asked(place, whose, ask_by_label(kind, of[place], examples), [*truths]))
    return asked


def _shuffled(
    pairs: Sequence[tuple[Example, Example]], count: int, generator: np.random.Generator
) -> list[tuple[Example, Any]]:
    """Returns the texts of the first pairs, each with whether it is a trigger example."""
    items = [item for trigger, silent in pairs[:count] for item in ((trigger, True), (silent, False))]
    return shuffled(items, generator)


def _by_memory(asked: Sequence[Asked], answers: Sequence[Answered]) -> pd.DataFrame:
    """Returns one row per memory, score and label."""
    groups: dict[tuple[Place, str, str], list[tuple[Asked, Answered]]] = {}
    for each, answered in zip(asked, answers, strict=True):
        groups.setdefault((each.place, each.question.kind, each.label), []).append((each, answered))
    rows = []
    for (place, kind, label), of_group in groups.items():
        known = [(each.truth, answered.value) for each, answered in of_group if answered.value is not None]
        score = _score(kind, [truth for truth, _ in known], [said for _, said in known])
        chance = {"intruder": 1 / PER_SET, "simulation": 0.0}.get(kind, 0.5)
        rows.append((*place, kind, label, len(of_group), len(known), len(of_group) - len(known), *score, chance))
    return pd.DataFrame(rows, columns=SCORES.names[1:])


def _score(kind: str, truth: list[Any], said: list[Any]) -> tuple[int, float, float, float]:
    """Returns the number of texts that were judged (sets of the intruder test), value, sensitivity and specificity."""
    if kind == "intruder":
        return len(truth), intruder_accuracy(truth, said), math.nan, math.nan
    true = [item for of_question in truth for item in of_question]
    named = [item for of_question in said for item in of_question]
    if kind == "simulation":
        return len(true), correlation(true, named), math.nan, math.nan
    return len(true), balanced_accuracy(true, named), *rates(true, named)


def _labels(texts: dict[Place, Texts], found: dict[Place, Answered]) -> pd.DataFrame:
    rows = []
    for place, each in texts.items():
        counts = map(len, (each.shown, each.held_out, each.silent))
        rows.append((*place, found[place].value or "", found[place].refusal, *counts, each.threshold))
    return pd.DataFrame(rows, columns=LABELS.names[1:])
