"""Search over all memories: a page, and the same list as JSON and CSV."""

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from starlette.responses import JSONResponse, RedirectResponse, Response

from ffkv.errors import UserError
from ffkv.explorer.pages import LIVE, render
from ffkv.explorer.shelf import Held
from ffkv.files.checksums import Damaged
from ffkv.files.provenance import Foreign
from ffkv.results.memory_name import NAME, check_memory, parse_memory_name
from ffkv.results.search import Found

PER_PAGE = 50
MOST_EXPORTED = 100_000  # rows of a JSON or CSV list
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a text that begins so is a formula in a spreadsheet
SHOWN = [
    "name",
    "firing_rate",
    "maximum_coefficient",
    "norm",
    "contribution",
    "top_token",
    "top_probability",
    "rank",
    "agrees",
    "matching",
]
FORMS = {"firing_rate": "percent", "top_probability": "percent", "negative_rate": "percent"}
FORMS |= {"promoted_probability": "percent", "demoted_probability": "percent"}
TEXTS = ("promotes", "demotes", "text", "pattern", "layer", "sort", "order")


class Question:
    """What an address asks of the search.

    Attributes:
        asked: the text of each question that is asked, by its name in the address.
        options: the same as arguments of `Run.find`.
    """

    def __init__(self, query: Mapping[str, str]):
        """Reads the address.

        Raises:
            UserError: a number is none.
        """
        ranges = {name: value for name, value in query.items() if name.startswith(("min_", "max_"))}
        self.asked = {name: query[name] for name in TEXTS if query.get(name, "").strip()}
        self.asked |= {name: value for name, value in ranges.items() if value.strip()}
        self.options: dict[str, Any] = {"any_case": True, "ascending": self.asked.get("order") == "ascending"}
        for name in ("promotes", "demotes"):
            if name in self.asked:
                self.options[name] = _token(self.asked[name])
        for name in ("pattern", "sort"):
            if name in self.asked:
                self.options[name] = self.asked[name]
        if text := self.asked.get("text"):
            expression = len(text) > 2 and text.startswith("/") and text.endswith("/")
            self.options |= {"text": text[1:-1] if expression else text, "expression": expression}
        if "layer" in self.asked:
            self.options["layer"] = _whole("layer", self.asked["layer"])
        between: dict[str, tuple[float | None, float | None]] = {}
        for name, value in self.asked.items():
            if name in ranges:
                low, high = between.get(name[4:], (None, None))
                limit = _decimal(name, value)
                between[name[4:]] = (limit, high) if name.startswith("min_") else (low, limit)
        self.options["between"] = between


def _token(text: str) -> str | int:
    """A token by its text, or by its id written as #464."""
    return int(text.strip()[1:]) if text.strip().startswith("#") and text.strip()[1:].isdecimal() else text


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{name} is {text!r}. Write a whole number, such as 3.") from error


def _decimal(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UserError(f"{name} is {text!r}. Write a number, such as 0.5.") from error
    if math.isnan(value):
        raise UserError(f"{name} is {text!r}. Write a number, such as 0.5.")
    return value


def memories(held: Held, query: Mapping[str, str]) -> Response:
    """The page of a search, or its list as JSON or CSV."""
    problem, found, question = "", None, None
    held.prepare()
    try:
        question = Question(query)
        page = _whole("page", query.get("page", "") or "1")
        found = held.run.find(**question.options)
    except (Damaged, Foreign):
        raise
    except UserError as error:
        problem, page = str(error), 1
    if found is not None and query.get("format") in ("json", "csv"):
        return as_list(held, found, query["format"])
    if problem and query.get("format"):
        return JSONResponse({"error": problem}, 400)
    return _page(held, query, question, found, page, problem)


def _page(
    held: Held, query: Mapping[str, str], question: Question | None, found: Found | None, page: int, problem: str
) -> Response:
    total = len(found) if found is not None else 0
    pages = max(1, -(-total // PER_PAGE))
    if not problem and not 1 <= page <= pages:
        problem, page = f"There is no page {page}. The list has pages 1 to {pages}.", min(max(page, 1), pages)
    rows = found.table((page - 1) * PER_PAGE, page * PER_PAGE) if found is not None else pd.DataFrame()
    asked = question.asked if question else {name: value for name, value in query.items() if name in TEXTS}
    statistics = (found or held.run.find()).statistics
    return render(
        "memories.html",
        held=held,
        status=400 if problem else 200,
        asked=asked,
        ranged=any(name.startswith(("min_", "max_")) for name in asked),
        problem=problem,
        rows=rows.to_dict("records"),
        columns=_columns(rows, asked.get("sort", "")),
        forms={name: _form(rows[name]) if name in rows else "" for name in rows},
        total=total,
        page=page,
        pages=pages,
        first=(page - 1) * PER_PAGE,
        sortable=[name for name in statistics if name not in ("layer", "memory", "name")],
        limits=[
            name
            for name in statistics
            if pd.api.types.is_numeric_dtype(statistics[name]) and name not in ("layer", "memory")
        ],
        layers=len(held.run.anatomy.layers),
        address=lambda **changed: LIVE.memories(held, **{**asked, **changed}),
    )


def _columns(rows: pd.DataFrame, sort: str) -> list[str]:
    """The columns that the page shows: some statistics, the one that is sorted by, and what the search adds."""
    added = list(rows.columns[list(rows.columns).index("negative_agrees") + 1 :]) if "negative_agrees" in rows else []
    known = [name for name in SHOWN if name in rows]
    found = [name for name in rows if name.startswith(("promoted_", "demoted_")) or name in
             ("examples_with_text", "coefficient_with_text", "pattern_found", "examples_with_pattern")]  # fmt: skip
    extra = [sort] if sort in rows and sort not in known else []
    return list(dict.fromkeys([*known[:1], *found, *extra, *known[1:], *[name for name in added if name in found]]))


def _form(values: pd.Series) -> str:
    """How the page writes a column."""
    name = str(values.name)
    if name in FORMS:
        return "percent"
    if name.endswith("_token"):
        return "token"
    if pd.api.types.is_bool_dtype(values):
        return "truth"
    return "number" if pd.api.types.is_numeric_dtype(values) else "text"


def as_list(held: Held, found: Found, form: str) -> Response:
    """The memories that were found, in order, as JSON or CSV."""
    table = found.table(0, MOST_EXPORTED)
    name = f"{held.name}-memories"
    if form == "json":
        rows = json.loads(table.to_json(orient="records", double_precision=10))
        return JSONResponse({"run": held.name, "data": held.data, "total": len(found), "memories": rows})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(table.columns)
    writer.writerows([_safe(value) for value in row] for row in table.itertuples(index=False))
    quoted = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in name)
    headers = {"Content-Disposition": f'attachment; filename="{quoted}.csv"'}
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _safe(value: object) -> object:
    """A text that a spreadsheet takes for a text: behind an apostrophe where it would be a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.lstrip(" ").startswith(FORMULA) else value
    return value.item() if isinstance(value, np.generic) else value


def go(held: Held, text: str) -> Response:
    """Sends to the page of a memory by its name, or to a search for a token.

    Raises:
        UserError: the text is the name of a memory that the run does not have.
    """
    if not NAME.fullmatch(text.strip()):
        return RedirectResponse(LIVE.memories(held, promotes=text), 303)
    layer, index = parse_memory_name(text)
    check_memory(layer, index, [each.memories for each in held.run.anatomy.layers])
    return RedirectResponse(LIVE.memory(held, layer, index), 303)
