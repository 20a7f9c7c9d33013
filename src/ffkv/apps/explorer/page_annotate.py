"""Pages on which people judge the items of a sheet.

They say nothing about what an item is, and lead to no page that does.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from pydantic import ValidationError
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from ffkv.apps.annotation.csv_sheets import with_marked_end
from ffkv.apps.annotation.records import MOST_PATTERNS, Record, append_record, identity_of
from ffkv.apps.annotation.sheets import Sheet, annotations_folder, read_sheet, sheet_names
from ffkv.apps.annotation.step import latest_of_person
from ffkv.apps.explorer.pages import LIVE, render, with_query
from ffkv.apps.explorer.shelf import Held, Shelf
from ffkv.base.errors import UserError

SLOTS = 3  # patterns that a page has room for at first
LARGEST = 2**18  # bytes that a page may send
FIELDS = 5000  # in them
KEEPS = re.compile(r"/r/[^/]+/annotate/[^/]+/[^/]+/\d{1,6}")
# A browser names the page that sends a form only if the page allows it, and the guard asks for the name.
HEADERS = {"Referrer-Policy": "same-origin"}


class NoItem(UserError):
    """There is no such sheet, person or item."""


def keeps(path: str) -> bool:
    """Tells whether a path takes what a page sends."""
    return KEEPS.fullmatch(path) is not None


def address(held: Held, *parts: str | int) -> str:
    """Returns the address of a sheet, of a person's items, or of one of them: sheet, annotator, number from 1."""
    return LIVE.run(held, "/".join(["annotate", *(quote(str(part), safe="") for part in parts)]))


def overview(shelf: Shelf, name: str = "") -> Response:
    """Returns the sheets of all open runs; if only one has the asked name, that one.

    Raises:
        NoItem: no open run has a sheet of this name.
    """
    sheets = [
        (held, each)
        for held in shelf.runs.values()
        for each in sheet_names(annotations_folder(held.run))
        if name in ("", each)
    ]
    if name and not sheets:
        raise NoItem(f"No open run has a sheet {name!r}.")
    if name and len(sheets) == 1:
        return RedirectResponse(address(*sheets[0]), 303)
    return render("annotate_sheets.html", sheets=[(held.name, each, address(held, each)) for held, each in sheets])


def people(held: Held, name: str) -> HTMLResponse:
    """Returns the people whom a sheet is for, and how far they are."""
    sheet = sheet_of(held, name)
    rows = []
    for annotator, order in sheet.orders.items():
        done = sum(record.done for record in _said(held, sheet, annotator).values())
        rows.append((annotator, address(held, name, annotator), done, len(order)))
    return render("annotate_people.html", sheet=sheet, people=rows)


def sheet_of(held: Held, name: str) -> Sheet:
    """Returns a sheet of a run. Raises NoItem if there is none of this name."""
    folder = annotations_folder(held.run)
    if name not in sheet_names(folder):
        raise NoItem(f"There is no sheet {name!r} of this run.")
    return read_sheet(folder, name, identity_of(held.run.files.identity("train")))


def _said(held: Held, sheet: Sheet, annotator: str) -> dict[str, Record]:
    """Returns the latest record of each item that a person has said something about."""
    return latest_of_person(annotations_folder(held.run), sheet, annotator)


def continue_at(held: Held, name: str, annotator: str) -> Response:
    """Leads to the first item that the person is not done with; to the first one if there is none."""
    sheet = sheet_of(held, name)
    order, said = _order(sheet, annotator), _said(held, sheet, annotator)
    open_items = (place for place, item in enumerate(order, 1) if not (item in said and said[item].done))
    return RedirectResponse(address(held, name, annotator, next(open_items, 1)), 303)


def _order(sheet: Sheet, annotator: str) -> tuple[str, ...]:
    if annotator not in sheet.orders:
        raise NoItem(f"The sheet {sheet.name} is for {', '.join(sheet.orders)}.")
    return sheet.orders[annotator]


def _item_at(sheet: Sheet, annotator: str, number: int) -> str:
    """Returns the id of a person's item by its place, from 1."""
    order = _order(sheet, annotator)
    if not 1 <= number <= len(order):
        raise NoItem(f"{annotator} has the items 1 to {len(order)} of the sheet {sheet.name}.")
    return order[number - 1]


def item(
    held: Held, sheet: Sheet, annotator: str, number: int, asked_slots: str = "", problem: str = ""
) -> HTMLResponse:
    """Returns one item, with what the person has said about it.

    Args:
        number: its place in the person's order, from 1.
        asked_slots: for how many patterns the address asks for room; "" if it does not.
        problem: why it cannot be done; "" if it can.
    Raises:
        NoItem: there is no such person or item.
    """
    order, shown, said = _order(sheet, annotator), _item_at(sheet, annotator, number), _said(held, sheet, annotator)
    record = said.get(shown)
    slots = max(SLOTS, len(record.patterns) if record else 0, _small(asked_slots) or 0)
    answer = render(
        "annotate_item.html",
        status=400 if problem else 200,
        problem=problem,
        sheet=sheet,
        annotator=annotator,
        number=number,
        id=shown,
        item=sheet.items[shown],
        texts=[with_marked_end(text) for text in sheet.items[shown].prefixes],
        record=record,
        slots=min(slots, MOST_PATTERNS),
        most=MOST_PATTERNS,
        here=address(held, sheet.name, annotator, number),
        places=[
            (place, address(held, sheet.name, annotator, place), each in said and said[each].done)
            for place, each in enumerate(order, 1)
        ],
        done=sum(each.done for each in said.values()),
    )
    answer.headers.update(HEADERS)
    return answer


def _small(text: str) -> int | None:
    """Returns a number of at most three digits; None if the text is none."""
    return int(text) if text.isdecimal() and len(text) < 4 else None


def keep(held: Held, sheet: Sheet, annotator: str, number: int, body: bytes) -> Response:
    """Keeps what a page sends, and leads on. Raises NoItem if there is no such person or item.

    The field `go` says whereto: "stay" (the script, while somebody writes), "save", "more" (room for another pattern),
    "previous", "next" or "done", which is the next item.
    """
    shown = _item_at(sheet, annotator, number)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS)
        sent = dict(fields)
        if sent.get("which") != shown:
            return PlainTextResponse("The page is of another item. Open the sheet again.", 409)
        before = _said(held, sheet, annotator).get(shown)
        record = read_fields(sheet, annotator, fields)
    except (ValidationError, ValueError) as error:  # no page of ours sends this
        return PlainTextResponse(f"This cannot be kept: {str(error)[:500]}", 400)
    wanted = sent.get("go") == "done" or (before is not None and before.done)
    record = record.model_copy(update={"done": wanted and not record.missing})
    if before is not None and record.repeats(before):
        record = before
    else:
        try:
            append_record(annotations_folder(held.run), record)
        except UserError as error:
            if sent.get("go") == "stay":  # the script shows it beside what is written
                return PlainTextResponse(str(error), 500)
            raise
    if sent.get("go") == "stay":
        return PlainTextResponse(record.time)
    if sent.get("go") == "done" and record.missing:
        return item(held, sheet, annotator, number, sent.get("slots", ""), record.missing)
    return RedirectResponse(_next(held, sheet, annotator, number, sent), 303)


def _next(held: Held, sheet: Sheet, annotator: str, number: int, sent: Mapping[str, str]) -> str:
    """Returns the address that a page leads to."""
    go, last = sent.get("go", ""), len(sheet.orders[annotator])
    if go == "more":
        slots = _small(sent.get("slots", ""))
        more = SLOTS if slots is None else min(slots + 1, MOST_PATTERNS)
        return with_query(address(held, sheet.name, annotator, number), {"patterns": more})
    if go in ("done", "next") and number == last:
        return address(held, sheet.name)
    step = {"previous": -1, "next": 1, "done": 1}.get(go, 0)
    return address(held, sheet.name, annotator, max(1, number + step))


def read_fields(sheet: Sheet, annotator: str, fields: list[tuple[str, str]]) -> Record:
    """Returns the record of a form, not done. Patterns behind the last one that says something are left out.

    Args:
        fields: `which`, the id of the item; of a key `label.<n>`, `kind.<n>` and, for each marked prefix, `mark.<n>`,
            of pattern n from 0; of a change `related`.
    Raises:
        ValueError: a field has a value that no page of ours gives it.
    """
    sent = dict(fields)
    about = {"annotator": f"person:{annotator}", "sheet": sheet.name, "item": sent["which"], "identity": sheet.identity}
    if sheet.kind == "change":
        return Record(**about, kind="change", related=sent.get("related") or None, done=False)
    patterns: list[dict] = []
    for number in range(MOST_PATTERNS):
        marks = [int(value) for name, value in fields if name == f"mark.{number}"]
        if any(not 0 <= mark < len(sheet.items[sent["which"]].prefixes) for mark in marks):
            raise ValueError("there is no such text")
        kind, label = (sent.get(f"{name}.{number}", "") for name in ("kind", "label"))
        patterns.append({"label": label, "kind": kind, "prefixes": marks})
    while patterns and not any(patterns[-1].values()):
        patterns.pop()
    return Record(**about, kind="key", patterns=patterns, done=False)
