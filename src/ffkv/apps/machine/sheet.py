"""A machine judges a sheet as people do, and its records lie beside theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ffkv.apps.annotation.records import MarkedPattern, Record, append_record, read_records
from ffkv.apps.annotation.sheets import Item, Sheet
from ffkv.apps.machine.asking import Asker
from ffkv.apps.machine.questions import Question, ask_patterns, ask_related
from ffkv.apps.machine.texts import SHOWN_CHARACTERS


class Judged(NamedTuple):
    """What became of the items of a sheet.

    Attributes:
        items: number of items.
        answered: number of items that were judged.
        new: number of records that were appended: those that say something else than the machine's earlier ones.
    """

    items: int
    answered: int
    new: int


def questions_of(sheet: Sheet, minimum: int) -> list[Question]:
    """One question per item, in the order of their ids.

    Args:
        sheet: the sheet. Nothing else is read, so the machine is as blind as people.
        minimum: fewest prefixes of a pattern.
    """
    return [_question(sheet.items[number], sheet.kind, minimum) for number in sorted(sheet.items)]


def _question(item: Item, kind: str, minimum: int) -> Question:
    if kind == "change":
        return ask_related(_end(item.text), item.before, item.after)
    return ask_patterns([_end(text) for text in item.prefixes], minimum)


def _end(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"…{text[-SHOWN_CHARACTERS:]}"


def judge(
    sheet: Sheet,
    folder: Path,
    asker: Asker,
    annotator: str,
    minimum: int,
    done: Callable[[], object] = lambda: None,
) -> Judged:
    """Lets a machine judge every item of a sheet, and appends its records. A refused item has no record.

    Args:
        sheet: the sheet.
        folder: `annotations/<run>`.
        asker: asks the questions.
        annotator: "machine:<model>".
        minimum: fewest prefixes of a pattern.
        done: called after each question.
    Raises:
        UserError: see `Asker.ask` and `append_record`.
    """
    numbers = sorted(sheet.items)
    answers = asker.ask(questions_of(sheet, minimum), done)
    earlier = {
        record.item: record
        for record in read_records(folder, sheet.identity, annotator).latest
        if record.sheet == sheet.name
    }
    new = 0
    for number, answered in zip(numbers, answers, strict=True):
        if answered.value is None:
            continue
        said = {
            "annotator": annotator,
            "sheet": sheet.name,
            "item": number,
            "identity": sheet.identity,
            "kind": sheet.kind,
        }
        if sheet.kind == "change":
            record = Record(**said, related=answered.value)
        else:
            marked = (MarkedPattern(label=label, kind=kind, prefixes=places) for label, kind, places in answered.value)
            record = Record(**said, patterns=tuple(marked))
        before = earlier.get(number)
        if before is None or before.model_copy(update={"time": record.time}) != record:
            append_record(folder, record)
            new += 1
    return Judged(len(numbers), sum(answered.value is not None for answered in answers), new)
