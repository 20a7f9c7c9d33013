"""Search over all memories: a page, and the same list as JSON and CSV; and what people keep: lists of memories, and notes.

Other pages show lists and notes beside a memory.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from ffkv.base.errors import UserError
from ffkv.base.files.stored import Damaged, Foreign
from ffkv.base.terminal import safe_text
from ffkv.run.results import indexes
from ffkv.run.results.collections import BEHAVIOUR, STARRED, Kept, append_event, members, read_kept
from ffkv.run.results.memory_columns import COLUMNS
from ffkv.run.results.memory_name import EXPERT, NAME, memory_name
from ffkv.run.results.run_files import unknown
from ffkv.run.results.search import Found, Search, find
from ffkv.run.results.tokens import complete_token
from ffkv_explorer.pages import LIVE, check_query, error_page, read_form, real, render, token_of, whole
from ffkv_explorer.shelf import Held

PER_PAGE = 50
PER_BLOCK = 10_000  # rows of a JSON or CSV list that are written together
SHOWN = ["firing_rate", "maximum_coefficient", "norm", "contribution", "top_token", "top_probability", "rank"]
SHOWN += ["agrees", "matching"]
PERCENT = ["firing_rate", "top_probability", "negative_rate", "promoted_probability", "demoted_probability"]
COMPLETED = 20  # tokens or names that continue what is typed
FIELDS = {name: field for name, field in Search.model_fields.items() if field.title}  # of the form
TEXTS = (*FIELDS, "order")
CHOICES = {"order": ["ascending", "descending"], "format": ["json", "csv"]}  # of what an address may ask
LIMITS = ("min_", "max_")  # how the ends of the range of a column begin
WORDS, ADDED = (
    {name: words for names, words in columns.items() for name in names.split(", ")}
    for columns in (COLUMNS["memories"] | COLUMNS["found"], COLUMNS["found"])
)
FOUND = {*ADDED, "lists"} - {"promoted_weight"}
WORDS["lists"] = "The named lists that the memory is in."


def read_question(query: Mapping[str, str]) -> tuple[dict[str, str], Search]:
    """Reads what an address asks: the texts by their names, and the search.

    Raises a UserError if a number is none, or the address asks what no search knows.
    """
    limits = [name for name in query if name.startswith(LIMITS)]
    check_query([name for name in query if name not in limits], *TEXTS, "page")
    for name, known in CHOICES.items():
        if query.get(name) and query[name] not in known:
            raise unknown(name, query[name], known)
    ranges = {name: query[name] for name in limits if query[name].strip()}
    asked = {name: query[name] for name in TEXTS if query.get(name, "").strip()}
    options: dict[str, Any] = {name: asked[name] for name in FIELDS if name in asked}
    if "promotes" in asked:
        options.setdefault("sort", "promoted_weight")  # what never fires comes last
    options |= {name: token_of(asked[name].strip()) for name in ("promotes", "demotes") if name in asked}
    text = asked.get("text", "")
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        options |= {"text": text[1:-1], "expression": True}
    if "layer" in asked:
        options["layer"] = whole(asked["layer"], "layer")
    between: dict[str, Any] = {}
    for name, value in ranges.items():
        column, upper = name.partition("_")[2], name.startswith("max_")
        limit = real(value, f"The {'upper' if upper else 'lower'} end of {column.replace('_', ' ')}")
        between.setdefault(column, [None, None])[upper] = limit
    search = Search(any_case=True, ascending=asked.get("order") == "ascending", between=between, **options)
    return asked | ranges, search


def memories(held: Held, query: Mapping[str, str]) -> Response:
    """Returns the page of a search, or its list as JSON or CSV."""
    asked = {name: value for name, value in query.items() if name in TEXTS or name.startswith(LIMITS)}
    problem, found = "", None
    held.prepare()
    try:
        asked, search = read_question(query)
        page = whole(query.get("page", "") or "1", "page")
        found = find(held.run.files, search)
    except (Damaged, Foreign):
        raise
    except UserError as error:
        problem, page = str(error), 1
    if problem and query.get("format"):
        return JSONResponse({"error": problem}, 400)
    # All memories that were found, in order. They are written a block at a time.
    if found is not None and query.get("format") == "json":
        return StreamingResponse(_json(held, found), media_type="application/json")
    if found is not None and query.get("format") == "csv":
        name = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in held.name)
        headers = {"Content-Disposition": f'attachment; filename="{name}-memories.csv"'}
        return StreamingResponse(_csv(found), media_type="text/csv; charset=utf-8", headers=headers)
    return _page(held, asked, found, page, problem)


def _page(held: Held, asked: dict[str, str], found: Found | None, page: int, problem: str) -> Response:
    total = len(found) if found is not None else 0
    pages = max(1, -(-total // PER_PAGE))
    if not problem and not 1 <= page <= pages:
        problem, page = f"There is no page {page}. The list has pages 1 to {pages}.", min(max(page, 1), pages)
    rows = found.table((page - 1) * PER_PAGE, page * PER_PAGE) if found is not None else pd.DataFrame()
    numbers = [] if found is None else [name for name in found.added.select_dtypes("number") if name in FOUND]
    statistics, kept = indexes.statistics(held.run.files), read_lists(held)
    if len(rows) and kept.lists:
        rows.insert(0, "lists", [", ".join(kept.of(name)) for name in rows["name"]])
    if "added" in rows:
        rows["added"] = rows["added"].str[:16].str.replace("T", " ")
    form: dict[str, Any] = {
        "fields": FIELDS,
        "ranged": any(name.startswith(LIMITS) for name in asked),
        "sortable": [*numbers, *(name for name in statistics if name not in ("layer", "memory", "name"))],
        "limits": [name for name in statistics.select_dtypes(["number", "bool"]) if name != "layer"],
        "layers": len(held.run.anatomy.layers),
        "experts": any(layer.experts for layer in held.run.anatomy.layers),
        "tasks": sorted(indexes.concepts(held.run.files)["task"].unique()),
        "roles": {name: [*filter(None, names)] for name, names in indexes.ROLES.items() if name in statistics},
    }
    # What the search adds, the column that is sorted by, and some statistics. By its top token one knows a memory of a list.
    known = ["top_token"] if "detects" in rows else []
    added, by = [name for name in rows if name in FOUND], asked.get("sort", "")
    columns = [name for name in dict.fromkeys(["name", *known, *added, by, *SHOWN]) if name in rows]
    shown: dict[str, Any] = {"rows": rows.to_dict("records"), "columns": columns if len(rows) else []}
    shown |= {"forms": {name: _form(rows[name]) for name in rows}, "words": WORDS, "kept": kept}
    shown |= {"total": total, "page": page, "pages": pages, "first": (page - 1) * PER_PAGE}
    about: dict[str, Any] = {"held": held, "asked": asked, "problem": problem, "status": 400 if problem else 200}
    about["address"] = lambda **changed: LIVE.run(held, "memories", **{**asked, **changed})
    return render("memories.html", sends=True, **about, **form, **shown)


def _form(values: pd.Series) -> str:
    name = str(values.name)
    if name in PERCENT:
        return "percent"
    if name.endswith("_token"):
        return "token"
    if pd.api.types.is_bool_dtype(values):
        return "truth"
    return "number" if pd.api.types.is_numeric_dtype(values) else "text"


def _blocks(found: Found) -> Iterator[pd.DataFrame]:
    """Yields the table of what was found, some rows at a time; at least one block, which may be empty."""
    for start in range(0, max(1, len(found)), PER_BLOCK):
        yield found.table(start, start + PER_BLOCK)


def _json(held: Held, found: Found) -> Iterator[str]:
    about = json.dumps({"run": held.name, **held.asks, "data": held.data, "total": len(found)})
    yield f'{about[:-1]}, "memories": ['
    for number, block in enumerate(_blocks(found)):
        rows = block.to_json(orient="records", double_precision=10)[1:-1]
        yield f",{rows}" if number else rows
    yield "]}"


def _csv(found: Found) -> Iterator[str]:
    """Writes numbers with all their digits, and texts as a spreadsheet shows them."""
    for number, block in enumerate(_blocks(found)):
        safe = block.astype(object).map(lambda value: safe_text(value) if isinstance(value, str) else value)
        yield safe.to_csv(index=False, header=not number, lineterminator="\r\n")


def go(held: Held, query: Mapping[str, str]) -> Response:
    """Sends to the page of a memory by its name, or a search for a behaviour or token. Raises NoSuch if there is no such memory."""
    text = query.get("q", "")
    if text.strip().startswith(BEHAVIOUR):
        name = text.strip().removeprefix(BEHAVIOUR)
        return RedirectResponse(LIVE.run(held, "memories", behaviour=name), 303)
    if EXPERT.fullmatch(text.strip()):
        return RedirectResponse(LIVE.run(held, f"e/{text.strip()}"), 303)
    if not NAME.fullmatch(text.strip()):
        return RedirectResponse(LIVE.run(held, "memories", promotes=text), 303)
    return RedirectResponse(LIVE.memory(held, *held.place(text)), 303)


def complete(held: Held, query: Mapping[str, str]) -> Response:
    """Returns what continues a text that is being typed, as JSON: names of memories, else tokens and behaviours."""
    text = query.get("q", "").strip()
    if name := re.fullmatch(r"[lL]?(\d{1,9})[./](\d{0,9})", text):
        layer, begun = int(name[1]), name[2]
        numbers = (str(number) for number in range(held.sizes[layer] if layer < len(held.sizes) else 0))
        names = (memory_name(layer, int(number)) for number in numbers if number.startswith(begun))
        return JSONResponse([*itertools.islice(names, COMPLETED)])
    named = (BEHAVIOUR + name for name in held.run.settings.behaviours)
    behaviours = [name for name in named if text and text.casefold() in name.casefold()]
    return JSONResponse([*complete_token(held.run.files, text, COMPLETED), *behaviours][:COMPLETED])


def exported(held: Held, page: str) -> Response:
    """Sends a link of the report, which names an exported page, to the live page. Raises NoSuch as `go`."""
    return RedirectResponse(LIVE.memory(held, *held.place(page.removesuffix(".html"))), 303)


def read_lists(held: Held) -> Kept:
    """Reads what people keep of a run: the stars first, then lists by name.

    What cannot be read is among the lines that are `torn`, and no error: the page shows all else.
    """
    try:
        kept = read_kept(held.run.files)
    except UserError as error:
        return Kept({}, {}, [str(error)])
    lists = {name: kept.lists[name] for name in sorted(kept.lists, key=lambda name: (name != STARRED, name))}
    return kept._replace(lists=lists)


def lists(held: Held) -> HTMLResponse:
    """Returns the page of all lists and notes of a run."""
    return render("collections.html", held=held, sends=True, kept=read_lists(held))


def keep(held: Held, body: bytes) -> Response:
    """Keeps what a form sends, and leads to the page that shows it.

    The field `action` says what to do: "add" memories to the list `collection` or "remove" them, "delete" the list,
    "rename" it, or keep the `text` of a "note". `back` is the page to go back to: a memory, or "" for the lists.
    """
    files = held.run.files
    try:
        sent = read_form(body)
        action, collection = sent.get("action", ""), sent.get("collection", "").strip()
        named = [memory_name(*held.place(name)) for name in sent.getlist("memory")]
        if action == "delete":
            append_event(files, "remove", collection=collection, memories=[*members(files, collection)])
        elif action == "rename":
            append_event(files, "rename", collection=collection, to=sent.get("to", "").strip())
        elif not named:
            raise UserError("No memory is ticked. Go back, and tick those that you want to keep.")
        elif action == "note":
            append_event(files, "note", memories=named, text=sent.get("text", ""))
        else:
            append_event(files, action, collection=collection, memories=named)
    except (UserError, ValueError) as error:
        return error_page(400, "This cannot be kept", str(error))
    if back := sent.get("back"):
        return RedirectResponse(LIVE.memory(held, *held.place(back)) + "#lists", 303)
    if action == "add":
        return RedirectResponse(LIVE.run(held, "memories", collection=collection), 303)
    return RedirectResponse(LIVE.run(held, "collections"), 303)
