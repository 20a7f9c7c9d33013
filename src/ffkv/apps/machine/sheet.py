"""A machine judges a sheet as people do, and its records lie beside theirs."""

from pathlib import Path

from ffkv.apps.annotation.sheets import Item, Sheet
from ffkv.apps.annotation.step import append_new
from ffkv.apps.machine.asking import Asker
from ffkv.apps.machine.questions import Question, ask_patterns, ask_related
from ffkv.apps.machine.texts import end_of


def questions_of(sheet: Sheet, minimum: int) -> list[Question]:
    """Returns one question per item, in the order of their ids.

    Args:
        sheet: the sheet. Nothing else is read, so the machine is as blind as people.
        minimum: fewest prefixes of a pattern.
    """
    return [_question(sheet.items[number], sheet.kind, minimum) for number in sorted(sheet.items)]


def _question(item: Item, kind: str, minimum: int) -> Question:
    if kind == "change":
        return ask_related(end_of(item.text), item.before, item.after)
    return ask_patterns([end_of(text) for text in item.prefixes], minimum)


def judge(sheet: Sheet, folder: Path, asker: Asker, minimum: int) -> tuple[int, int]:
    """Lets a machine judge every item of a sheet, and appends its records. A refused item has no record.

    Args:
        sheet: the sheet.
        folder: `annotations/<run>`.
        asker: asks the questions. The annotator of the records is "machine:<model>".
        minimum: fewest prefixes of a pattern.
    Returns:
        Number of items that were judged, and number of records that say something else than the machine's earlier ones.
    Raises:
        UserError: see `Asker.ask` and `append_record`.
    """
    annotator, field = f"machine:{asker.machine.model}", "related" if sheet.kind == "change" else "patterns"
    answers = zip(sorted(sheet.items), asker.ask(questions_of(sheet, minimum), sheet.name), strict=True)
    said = [
        sheet.record(annotator, item, **{field: answered.value}) for item, answered in answers if not answered.refusal
    ]
    return len(said), append_new(folder, sheet, annotator, said)
