"""A machine is asked about a run: it judges sheets as people do, or explains memories, and its explanations are scored.

packages/ffkv-machines/README.md defines the scores. Sequences have one entry per text [text], or per set of the intruder test [set]. A score is
NaN where it is undefined.
"""

import json
import math
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.journal import name_in_files
from ffkv.base.intervals import mean_interval
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.run.annotation_tables import BY_LAYER, LABELS, MACHINE_FILES, SCORES
from ffkv.run.results.run import Run
from ffkv_annotation.sheets import Sheet, read_sheet
from ffkv_annotation.step import append_new
from ffkv_annotation.summaries import FOLDER, SETTINGS
from ffkv_machines import questions as wording
from ffkv_machines import texts as chosen
from ffkv_machines.asking import Answered, Asker, Cost, Endpoint, Ledger, read_key
from ffkv_machines.settings import Machine, Task
from ffkv_machines.texts import Example, Place, Texts, shuffled

COUNTS = ("asked", "answered", "refused")
SHOWN = 20  # trigger examples that are explained
PER_SET = 5  # texts per intruder question
TYPICAL_LABEL = 60  # characters
LONG_CHARACTER = "\N{GRINNING FACE}"  # of four bytes
FEWEST_EXAMPLES = 6  # trigger examples of a memory that can be explained and scored


def ask_machine(
    run: Run, annotations: Path, machine: Machine, task: Task, *, dry_run: bool = False, replay: bool = False
) -> None:
    """Asks a machine about a run, keeps each answer in `annotations/<run>/machine/<model>`, and says what came of it.

    A dry run says what would be asked and how many tokens it takes: nothing is asked or written. A replay uses kept
    answers only. Raises UserError if no endpoint is named; see `Asker.ask` and `explain`.
    """
    silent = dry_run or replay
    if not (machine.endpoint or silent):
        raise UserError("Name the --endpoint, or ask nothing with --replay or --dry-run.")
    folder = annotations / FOLDER / name_in_files(machine.model, r"[^A-Za-z0-9.-]+")
    ledger = Ledger(folder / "answers.jsonl")
    if ledger.torn:
        say(f"{ledger.path}: {ledger.torn} lines are not whole, because a process was killed. They are left out.")
    sheets = [read_sheet(annotations, name, run.files.identity("train")) for name in task.sheets]
    minimum = run.settings.keys.minimum_prefixes
    key = None if silent else read_key(machine.key_variable)
    with nullcontext() if silent else closing(Endpoint(str(machine.endpoint), key, machine.timeout)) as endpoint:
        asker = Asker(ledger, endpoint, machine)
        if dry_run:
            costs = {sheet.name: asker.cost(wording.ask_items(sheet, minimum)) for sheet in sheets}
            costs = costs or estimate(run, asker, task)
            for kind, cost in costs.items():
                say(f"{kind}: {cost.questions:,} questions, {cost.kept:,} of them with a kept answer")
            questions, kept, about, most = map(sum, zip(*costs.values()))
            say(
                f"{questions - kept:,} questions would be asked. That takes about {about:,} tokens, and {most:,} at most if"
                f" each is answered in the right form at once. {ledger.spent:,} tokens are spent."
            )
            return
        for sheet in sheets:
            answered, new = judge(sheet, annotations, asker, minimum)
            say(f"{sheet.name}: {answered} of {len(sheet.items)} items judged, {new} new records.")
        if not sheets:
            _explain(run, asker, task)
    say(f"{asker.asked:,} requests were sent now. All kept answers took {ledger.spent:,} tokens: {ledger.path}")


def judge(sheet: Sheet, folder: Path, asker: Asker, minimum: int) -> tuple[int, int]:
    """Lets a machine judge every item of a sheet, and appends its records beside those of people.

    Returns the number of items that were judged (a refused one has no record), and of records that say something new.
    Raises UserError: see `Asker.ask` and `append_record`. `minimum`: fewest prefixes of a pattern.
    """
    annotator, field = f"machine:{asker.machine.model}", "related" if sheet.kind == "change" else "patterns"
    answers = zip(sorted(sheet.items), asker.ask(wording.ask_items(sheet, minimum), sheet.name), strict=True)
    said = [
        sheet.record(annotator, item, **{field: answered.value}) for item, answered in answers if not answered.refusal
    ]
    return len(said), append_new(folder, sheet, annotator, said)


def _explain(run: Run, asker: Asker, task: Task) -> None:
    """Explains memories, and writes tables beside the answers. `settings.json` says what the numbers depend on."""
    found, folder, machine = explain(run, asker, task), asker.ledger.path.parent, asker.machine
    for name, table in found.items():
        tables.write(table, folder / name)
    about: dict[str, Any] = {"run": run.name, **run.files.identity("train"), "shown": SHOWN, "per_set": PER_SET}
    about |= task.model_dump(include={"seed", "pairs", "per_question", "baseline"}) | {"measured": task.pairs}
    about |= {"model": machine.model, "parameters": machine.sent, "forms": machine.forms}
    with atomic(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    labels, _, by_layer = found.values()
    of_all = by_layer.query("layer == -1").drop(columns="layer")
    say(of_all.to_string(index=False, float_format="%.2f"))
    say(f"{len(labels)} memories, {(labels['refusal'] != '').sum()} labels refused: {folder}")


class Asked(NamedTuple):
    """A question about a memory, with the truth that its answer is compared with."""

    place: Place  # layer and memory
    label: str  # "own", "other" or "none": whose label the question holds
    question: wording.Question
    truth: Any  # whether each text is a trigger example; or the coefficient of each text; or the place of the intruder


def explain(run: Run, asker: Asker, task: Task) -> dict[str, pd.DataFrame]:
    """Explains memories from some of their trigger examples, and scores the explanations on the others.

    Returns the tables of `MACHINE_FILES`, without annotator, by the names of their files. Raises UserError if no memory has enough trigger examples; and see `Asker.ask`.
    """
    texts = _texts(run, task)
    answers = asker.ask([wording.ask_label(each.shown) for each in texts.values()], "labels")
    found = dict(zip(texts, answers, strict=True))
    labels = {place: answered.value for place, answered in found.items() if answered.value is not None}
    asked = _scored(texts, labels, task)
    by_memory = _by_memory(asked, asker.ask([each.question for each in asked], "scores"))
    rows = []
    for place, each in texts.items():
        counts = map(len, (each.shown, each.held_out, each.silent))
        rows.append((*place, found[place].value or "", found[place].refusal, *counts, each.threshold))
    found_labels = pd.DataFrame(rows, columns=LABELS.names[1:])
    return dict(zip(MACHINE_FILES, (found_labels, by_memory, summarize(by_memory)), strict=True))


def estimate(run: Run, asker: Asker, task: Task) -> dict[str, Cost]:
    """Returns what `explain` would ask, per kind of question. Nothing is asked.

    Labels that are not known yet count with `TYPICAL_LABEL` characters in `Cost.about`, and with the most bytes that a
    label can have in `Cost.most`.
    """
    texts = _texts(run, task)
    questions = [wording.ask_label(each.shown) for each in texts.values()]
    settled = dict(zip(texts, map(asker.settle, questions)))
    costs = []
    for character, length in (("x", TYPICAL_LABEL), (LONG_CHARACTER, wording.LONGEST_LABEL)):
        # Each stand-in is another one, as labels mostly are.
        labels = {place: character * (length - len(str(number))) + str(number) for number, place in enumerate(texts)}
        labels |= {place: answered.value for place, answered in settled.items() if answered}
        labels = {place: label for place, label in labels.items() if label is not None}
        by_kind: dict[str, list[wording.Question]] = {"label": questions}
        for each in _scored(texts, labels, task):
            by_kind.setdefault(each.question.kind, []).append(each.question)
        costs.append({kind: asker.cost(of_kind) for kind, of_kind in by_kind.items()})
    typical, longest = costs
    return {kind: cost._replace(most=longest[kind].most) for kind, cost in typical.items()}


def _texts(run: Run, task: Task) -> dict[Place, Texts]:
    """Returns the texts about the memories that have enough trigger examples."""
    places = chosen.choose_memories(run, task.memories, task.per_layer, task.seed)
    texts = dict(chosen.read_texts(run, places, SHOWN, task.seed))
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
    others = other_labels(labels) if task.baseline else {}
    asked: list[Asked] = []
    for place, each in texts.items():
        generator = random_stream(task.seed, Purpose.MACHINE_TEXTS, *place, 2)
        pairs = chosen.pair_by_length(each.held_out, each.silent, generator)
        all_pairs = chosen.pair_by_length([*each.shown, *each.held_out], each.silent, generator)
        for texts_of_set in chosen.intruder_sets(all_pairs, PER_SET, generator):
            examples, intrudes = zip(*texts_of_set)
            asked.append(Asked(place, "none", wording.ask_intruder(examples), intrudes.index(True)))
        simulated = [*each.held_out[: task.pairs], *each.measured[: task.pairs]]
        items = {  # in a random order: so questions differ in how many trigger examples they hold
            "detection": _shuffled(pairs, task.pairs, generator),
            wording.SAME_WORD: _shuffled(
                chosen.pair_by_word(each.held_out, each.silent, generator), task.pairs, generator
            ),
            "fuzzing": _shuffled(pairs, task.pairs, generator),
            "simulation": shuffled([(example, example.coefficient) for example in simulated], generator),
        }
        for whose, of in (("own", labels), ("other", others)):
            for kind, of_kind in items.items() if place in of else ():
                for start in range(0, len(of_kind), task.per_question):
                    examples, truths = zip(*of_kind[start : start + task.per_question])
                    asked.append(Asked(place, whose, wording.ask_by_label(kind, of[place], examples), [*truths]))
    return asked


def _shuffled(
    pairs: Sequence[tuple[Example, Example]], count: int, generator: np.random.Generator
) -> list[tuple[Example, Any]]:
    """Returns the texts of the first pairs, each with whether it is a trigger example."""
    items = [item for trigger, silent in pairs[:count] for item in ((trigger, True), (silent, False))]
    return shuffled(items, generator)


def _by_memory(asked: Sequence[Asked], answers: Sequence[Answered]) -> pd.DataFrame:
    groups: dict[tuple[Place, str, str], list[tuple[Asked, Answered]]] = {}
    for each, answered in zip(asked, answers, strict=True):
        groups.setdefault((each.place, each.question.kind, each.label), []).append((each, answered))
    rows = []
    for (place, kind, label), of_group in groups.items():
        known = [(each.truth, answered.value) for each, answered in of_group if answered.value is not None]
        found = score(kind, [truth for truth, _ in known], [said for _, said in known])
        chance = {"intruder": 1 / PER_SET, "simulation": 0.0}.get(kind, 0.5)
        rows.append((*place, kind, label, len(of_group), len(known), len(of_group) - len(known), *found, chance))
    return pd.DataFrame(rows, columns=SCORES.names[1:])


def score(kind: str, truth: Sequence[Any], said: Sequence[Any]) -> tuple[int, float, float, float]:
    """Scores what was said in answer to the questions of one kind about a memory.

    `truth`, `said`: per question the place of the intruder; or per text of each question whether it is a trigger example,
    or, in a simulation, the coefficient. Returns the number of texts that were judged (sets of the intruder test), the
    value, and of the others the sensitivity (share of triggers that were named) and the specificity (share of other texts that
    were not).
    """
    if kind == "intruder":
        return len(truth), _mean(np.equal(truth, said)), math.nan, math.nan
    form = float if kind == "simulation" else bool
    true, named = (np.array([item for of_question in each for item in of_question], form) for each in (truth, said))
    if kind == "simulation":
        varies = len(true) > 2 and np.ptp(true) > 0 and np.ptp(named) > 0
        value = float(np.clip(np.corrcoef(true, named)[0, 1], -1, 1)) if varies else math.nan
        return len(true), value, math.nan, math.nan
    sensitivity, specificity = _mean(named[true]), _mean(~named[~true])
    return len(true), (sensitivity + specificity) / 2, sensitivity, specificity


def _mean(numbers: np.ndarray) -> float:
    return float(numbers.mean()) if len(numbers) else math.nan


def summarize(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Computes means over memories, with 95 % intervals over memories.

    The texts of a memory are similar, so memories are what is drawn, not texts. Memories whose score is undefined count
    in asked, answered and refused, and not in the mean. Takes rows of `SCORES`, and returns rows of `BY_LAYER`. The label
    "own - other" is of the mean difference over the memories that have both.
    """
    rows = []
    for layer, of_layer in [(-1, by_memory), *by_memory.groupby("layer")]:
        for score, of_score in of_layer.groupby("score", sort=True):
            lowest = -1 if score == "simulation" else 0  # a correlation, or a share
            for label, of_label in of_score.groupby("label", sort=True):
                counts = {name: int(of_label[name].sum()) for name in COUNTS}
                chance = float(of_label["chance"].iloc[0])
                rows.append({**_row(layer, score, label, of_label["value"], (lowest, 1)), **counts, "chance": chance})
            values = of_score.pivot(index=["layer", "memory"], columns="label", values="value")
            if {"own", "other"} <= set(values):
                difference = values["own"] - values["other"]
                rows.append({**_row(layer, score, "own - other", difference, (lowest - 1, 1 - lowest)), "chance": 0.0})
    return pd.DataFrame(rows, columns=BY_LAYER.names[1:]).astype(dict.fromkeys(COUNTS, "Int64"))


def _row(layer: int, score: str, label: str, values: pd.Series, limits: tuple[float, float]) -> dict[str, Any]:
    known = values.dropna().to_numpy(float)
    low, high = mean_interval(known, *limits)
    place = {"layer": int(layer), "score": score, "label": label, "memories": len(known)}
    return {**place, "mean": _mean(known), "low": low, "high": high}
