"""Pages on which people judge items of a sheet. They say nothing about what an item is, and lead to no page that does."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from ffkv.base.errors import UserError
from ffkv_annotation.records import MOST_PATTERNS, Record, append_record
from ffkv_annotation.sheets import Sheet, read_sheet, sheet_names, with_marked_end
from ffkv_annotation.step import latest_of
from ffkv_explorer.pages import LIVE, read_form, render, with_query
from ffkv_explorer.shelf import Held, NoSuch, Shelf

SLOTS = 3  # patterns that a page has room for at first


def address(held: Held, *parts: str | int) -> str:
    """Returns the address of a sheet, of a person's items, or of one of them: sheet, annotator, number from 1."""
    return LIVE.run(held, "/".join(["annotate", *(quote(str(part), safe="") for part in parts)]))


def overview(shelf: Shelf, sheet: str = "") -> Response:
    """Returns the sheets of all open runs; if only one has the asked name, that one.

    Raises NoSuch if no open run has a sheet of this name.
    """
    sheets = [
        (held, name)
        for held in shelf.runs.values()
        for name in sheet_names(held.run.files.annotations)
        if sheet in ("", name)
    ]
    if sheet and not sheets:
        raise NoSuch(f"No open run has a sheet {sheet!r}.")
    if sheet and len(sheets) == 1:
        return RedirectResponse(address(*sheets[0]), 303)
    found = [(held.name, name, address(held, name)) for held, name in sheets]
    folders = [shlex.quote(str(each.run.folder)) for each in shelf.runs.values()]
    return render("annotate_sheets.html", sheets=found, folders=folders)


def people(held: Held, sheet: str) -> HTMLResponse:
    """Returns the people whom a sheet is for, and how far they are."""
    found, rows = _sheet(held, sheet), []
    for annotator, order in found.orders.items():
        done = sum(record.done for record in _said(held, found, annotator).values())
        rows.append((annotator, address(held, sheet, annotator), done, len(order)))
    return render("annotate_people.html", sheet=found, people=rows)


def _sheet(held: Held, name: str, annotator: str | None = None, number: int = 1) -> Sheet:
    """Returns a sheet of a run. Raises NoSuch if there is no such sheet, person or item."""
    folder = held.run.files.annotations
    if name not in sheet_names(folder):
        raise NoSuch(f"There is no sheet {name!r} of this run.")
    sheet = read_sheet(folder, name, held.run.files.identity("train"))
    if annotator is not None and annotator not in sheet.orders:
        raise NoSuch(f"The sheet {name} is for {', '.join(sheet.orders)}.")
    if annotator is not None and not 1 <= number <= len(sheet.orders[annotator]):
        raise NoSuch(f"{annotator} has the items 1 to {len(sheet.orders[annotator])} of the sheet {name}.")
    return sheet


def _said(held: Held, sheet: Sheet, annotator: str) -> dict[str, Record]:
    """Returns the latest record of each item that a person has said something about."""
    return latest_of(held.run.files.annotations, sheet, f"person:{annotator}")


def continue_at(held: Held, sheet: str, annotator: str) -> Response:
    """Leads to the first item that the person is not done with; to the first one if there is none."""
    found = _sheet(held, sheet, annotator)
    done = {item for item, record in _said(held, found, annotator).items() if record.done}
    open_items = (place for place, item in enumerate(found.orders[annotator], 1) if item not in done)
    return RedirectResponse(address(held, sheet, annotator, next(open_items, 1)), 303)


def item(held: Held, sheet: str, annotator: str, number: int, query: Mapping[str, str]) -> HTMLResponse:
    """Returns one item, by its place from 1, with what the person has said about it. Raises NoSuch if there is none.

    In the query, `patterns` says for how many patterns there must be room.
    """
    return _item(held, sheet, annotator, number, query.get("patterns", ""))


def _item(held: Held, sheet: str, annotator: str, number: int, patterns: str, problem: str = "") -> HTMLResponse:
    """Returns an item, see `item`. `problem`: why it cannot be done."""
    found = _sheet(held, sheet, annotator, number)
    order, said = found.orders[annotator], _said(held, found, annotator)
    shown, record = found.items[order[number - 1]], said.get(order[number - 1])
    values: dict[str, Any] = {"sheet": found, "annotator": annotator, "number": number, "id": order[number - 1]}
    values |= {"item": shown, "texts": [with_marked_end(text) for text in shown.prefixes], "record": record}
    values["places"] = [
        (place, address(held, sheet, annotator, place), each in said and said[each].done)
        for place, each in enumerate(order, 1)
    ]
    slots = max(SLOTS, len(record.patterns) if record else 0, _small(patterns))
    values |= {"slots": min(slots, MOST_PATTERNS), "most": MOST_PATTERNS, "problem": problem}
    values |= {"here": address(held, sheet, annotator, number), "done": sum(each.done for each in said.values())}
    return render("annotate_item.html", sends=True, status=400 if problem else 200, **values)


def _small(text: str) -> int:
    """Returns a number of at most three digits; 0 if the text is none."""
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def keep(held: Held, sheet: str, annotator: str, number: int, body: bytes) -> Response:
    """Keeps what a page sends, and leads on. Raises NoSuch if there is no such item.

    The field `go` says whereto: "stay" (the script, while somebody writes), "save", "more" (room for another pattern),
    "previous", "next" or "done", which is the next item.
    """
    found = _sheet(held, sheet, annotator, number)
    try:
        sent = read_form(body)
        if sent.get("which") != found.orders[annotator][number - 1]:
            return PlainTextResponse("The page is of another item. Open the sheet again.", 409)
        record = read_fields(found, annotator, sent)
    except (ValidationError, ValueError) as error:  # no page of ours sends this
        return PlainTextResponse(f"This cannot be kept: {str(error)[:500]}", 400)
    before, go = _said(held, found, annotator).get(record.item), sent.get("go", "")
    wanted = go == "done" or (before is not None and before.done)
    record = record.model_copy(update={"done": wanted and not record.missing})
    if before is not None and record.repeats(before):
        record = before
    else:
        try:
            append_record(held.run.files.annotations, record)
        except UserError as error:
            if go == "stay":  # the script shows it beside what is written
                return PlainTextResponse(str(error), 500)
            raise
    if go == "stay":
        return PlainTextResponse(record.time)
    if go == "done" and record.missing:
        return _item(held, sheet, annotator, number, sent.get("slots", ""), record.missing)
    return RedirectResponse(_next(held, found, annotator, number, sent), 303)


def _next(held: Held, sheet: Sheet, annotator: str, number: int, sent: Mapping[str, str]) -> str:
    go, last = sent.get("go", ""), len(sheet.orders[annotator])
    if go == "more":
        more = min(_small(sent.get("slots", "")) + 1, MOST_PATTERNS)
        return with_query(address(held, sheet.name, annotator, number), {"patterns": more})
    if go in ("done", "next") and number == last:
        return address(held, sheet.name)
    step = {"previous": -1, "next": 1, "done": 1}.get(go, 0)
    return address(held, sheet.name, annotator, max(1, number + step))


def read_fields(sheet: Sheet, annotator: str, sent: ImmutableMultiDict[str, str]) -> Record:
    """Returns the record of a form, not done. Patterns behind the last one that says something are left out.

    The fields are `which`, the id of the item; of a key `label.<n>`, `kind.<n>` and, for each marked prefix, `mark.<n>`,
    of pattern n from 0; of a change `related`. Raises ValueError if a value is none that a page of ours gives.
    """
    say = partial(sheet.record, f"person:{annotator}", sent["which"], done=False)
    if sheet.kind == "change":
        return say(related=sent.get("related") or None)
    patterns: list[dict] = []
    for number in range(MOST_PATTERNS):
        marks = [int(value) for value in sent.getlist(f"mark.{number}")]
        if any(not 0 <= mark < len(sheet.items[sent["which"]].prefixes) for mark in marks):
            raise ValueError("there is no such text")
        kind, label = (sent.get(f"{name}.{number}", "") for name in ("kind", "label"))
        patterns.append({"label": label, "kind": kind, "prefixes": marks})
    while patterns and not any(patterns[-1].values()):
        patterns.pop()
    return say(patterns=patterns)


ITEM = "/r/{run}/annotate/{sheet}/{annotator}/{number:int}"
# Address: what shows its page, and what keeps a form that is sent there, see `application`.
PAGES: dict[str, Callable[..., Response]] = {
    "/annotate": overview,
    "/annotate/{sheet}": overview,
    "/r/{run}/annotate/{sheet}": people,
    "/r/{run}/annotate/{sheet}/{annotator}": continue_at,
    ITEM: item,
}
KEEPING: dict[str, Callable[..., Response]] = {ITEM: keep}
