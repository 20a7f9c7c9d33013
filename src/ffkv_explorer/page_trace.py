"""The page of a trace: a prompt, its predictions by layer, its memories, what changes without some of them, how the model
goes on, the graph of the prediction, and the last traces.

Prompts may be private. Those of the last traces lie in `annotations/<run>/traces/`, in files that only the person can read.
"""

import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, RedirectResponse, Response

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files.journal import Entry, append_shared, read_shared, shared_files
from ffkv.base.files.stored import Damaged, Foreign
from ffkv.run.results.collections import identity, person
from ffkv_explorer.pages import LIVE, check_query, error_page, real, render, token_of, whole
from ffkv_explorer.shelf import Busy, Held, Shelf, import_model_code

if TYPE_CHECKING:  # needs torch, which takes seconds to import
    from ffkv.run.trace.result import Trace

FOLDER = "traces"
SHOWN = 20  # of the last traces
LONGEST = 20_000  # characters of a prompt
STRONGEST = 10  # memories of all layers
MOST_CONNECTED = 30  # memories between which edges are measured
MOST_EDGES = 40  # that are shown
MOST_TOKENS = 200  # that the model writes behind a prompt
POINTS = {"output": "block output", "residual": "residual", "ffn": "FF output"}
WHEN = ("after", "before")  # the changes: which states the tables and the map show
CONTINUED = {"tokens": whole, "temperature": real, "seed": whole}  # how the text goes on, and how each is read
GRAPHED = ("graph", "wrong", "other", "baseline")  # what is asked of a graph
FIXED: dict[str, Any] = {  # what the template always gets
    "graphed": GRAPHED, "continued": [*CONTINUED], "points": POINTS, "longest": LONGEST, "most_tokens": MOST_TOKENS,
    "most_connected": MOST_CONNECTED,
}  # fmt: skip
FIELDS = (
    *("prompt", "reading", "position", "word", "off", "scale", "everywhere", "point", "sort", "when", "edges", "layer"),
    *(*CONTINUED, *GRAPHED),
)


class Traced(Entry):
    """A trace that was asked for. Its identity is that of the model."""

    asked: dict[str, str]  # what its address asks


def trace(held: Held, shelf: Shelf, query: QueryParams) -> Response:
    """Returns the page of a trace, or its JSON; without a prompt only the form. One trace is computed at a time.

    An address that names `tokens` also asks how the model goes on, and one that names `graph` asks for the graph of the prediction.
    """
    asked = {name: query[name].replace("\r\n", "\n") for name in FIELDS if query.get(name)}
    if off := ", ".join(filter(None, query.getlist("off"))):  # a box that is ticked names one more memory
        asked["off"] = off
    json = query.get("format") == "json"
    answers: dict[str, Any] = {}  # as far as there are any
    try:
        check_query(query, *FIELDS)
        if "prompt" not in query:
            held.load_in_background()
            return _page(held, shelf, asked, answers)
        asked.setdefault("prompt", "")
        answers["found"] = found = _compute(held, shelf, asked)
        if "graph" in asked:
            if found.position != len(found.tokens) - 1:
                raise UserError("A graph is about the prediction behind the last token. Choose the last position.")
            answers["graph"] = _once(shelf, held, "graph", asked["prompt"], _options(asked, found))
        if "tokens" in asked:
            options = {name: read(asked[name], name) for name, read in CONTINUED.items() if name in asked}
            if (tokens := options["tokens"]) > MOST_TOKENS:
                most = f"The explorer writes at most {MOST_TOKENS}; `ffkv generate` writes more."
                raise UserError(f"tokens is {tokens:,}. {most}")
            goes_on = _once(shelf, held, "generate", asked["prompt"], _changes(asked) | options)
            answers["texts"] = goes_on.to_dict("records")  # rows of `ffkv.generate`
    except (Damaged, Foreign):
        raise
    except UserError as error:
        status = 429 if isinstance(error, Busy) else 400
        problem = {"error": str(error)}
        told = JSONResponse(problem, status) if json else _page(held, shelf, asked, answers, str(error), status)
        told.headers.update({"Retry-After": "5"} if status == 429 else {})
        return told
    if json:
        more = {name: answers[name] for name in ("texts",) if answers.get(name)}
        more |= {"graph": answers["graph"].to_dict()} if "graph" in answers else {}
        return JSONResponse(found.to_dict() | more)
    return _page(held, shelf, asked, answers)


def remember(held: Held, asked: dict[str, str] | None) -> tuple[list[Traced], str]:
    """Keeps a trace unless it is the last one; None: keeps nothing. Returns the last traces, the latest first, each once,
    and why the history cannot be read or written; "" if it can.
    """
    folder = held.run.files.annotations / FOLDER
    found, problem = list[Traced](), ""
    try:
        found = [entry for _, entry in read_shared(folder, Traced, writer=person())[0]]
        if asked is not None and (not found or found[-1].asked != asked):
            found.append(Traced(asked=asked, identity=identity(held.run.files)))
            append_shared(folder, person(), found[-1], 0o600)
    except UserError as error:
        problem = str(error)
    each_once: dict[tuple, Traced] = {}
    for one in reversed(found):
        each_once.setdefault(tuple(sorted(one.asked.items())), one)
    return [*each_once.values()][:SHOWN], problem


def forget(held: Held) -> Response:
    """Deletes the person's history of traces of a run, also what other explorers kept, and leads back to the page."""
    for path in shared_files(held.run.files.annotations / FOLDER, person()):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            told = f"{path} cannot be deleted: {error.strerror}. Check its rights."
            return error_page(500, "The history cannot be cleared", told)
    return RedirectResponse(LIVE.run(held, "trace"), 303)


def _compute(held: Held, shelf: Shelf, asked: Mapping[str, str]) -> "Trace":
    """Computes what an address asks. Raises Busy, and UserError as `ffkv.trace`."""
    prompt = asked["prompt"]
    if len(prompt) > LONGEST:
        raise UserError(f"The prompt has {len(prompt):,} characters. At most {LONGEST:,} are read: shorten it.")
    layers = ("all", *map(str, range(len(held.sizes))))
    for name, valid in (("point", POINTS), ("when", WHEN), ("layer", layers)):
        if name in asked and asked[name] not in valid:
            raise UserError(f"There is no {name} {asked[name]!r}. Choose one of: {', '.join(valid)}.")
    options: dict[str, Any] = _changes(asked) | {"everywhere": "everywhere" in asked}
    if asked.get("position", "").strip():
        options["position"] = whole(asked["position"], "position")
    if "edges" in asked:
        options["edges"] = whole(asked["edges"], "edges")
        if options["edges"] > MOST_CONNECTED:
            raise UserError(
                f"edges is {options['edges']:,}. The explorer connects at most {MOST_CONNECTED} memories; `ffkv trace --edges` connects"
                " more."
            )
    if word := asked.get("word", "").replace("␣", " "):
        token = token_of(word)
        options["token" if isinstance(token, str) else "token_id"] = token

    found: Trace = _once(shelf, held, "trace", prompt, options)
    return found


def _options(asked: Mapping[str, str], found: "Trace") -> dict[str, str]:
    """Returns the options of a graph: of `ffkv.graph`, and of the command of this name."""
    return {"answer": found.token, **{each: asked[each].replace("␣", " ") for each in GRAPHED[1:] if each in asked}}


def _changes(asked: Mapping[str, str]) -> dict[str, Any]:
    return {name: asked[name] for name in ("off", "scale") if name in asked}


def _once(shelf: Shelf, held: Held, what: str, prompt: str, options: Mapping[str, Any]) -> Any:
    """Returns the answer of `ffkv.<what>` that is kept, else computes it. Raises Busy while another one is computed."""
    kept, question = held.answers[what], (prompt, *options.items())
    lists = "@" in f"{options.get('off')}{options.get('scale')}"  # which may have other memories now
    if not lists and (found := kept.kept(question)) is not None:  # another view of the same
        return found
    if not shelf.model.acquire(blocking=False):
        raise Busy("The explorer is computing another trace, and computes one at a time. Try again in a few seconds.")
    try:
        import_model_code()
        found = getattr(ffkv, what)(held.run, prompt, **options)
        return found if lists else kept.get(question, lambda: found)
    finally:
        shelf.model.release()


def _page(
    held: Held, shelf: Shelf, asked: dict[str, str], answers: Mapping[str, Any], problem: str = "", status: int = 200
) -> Response:
    """Returns the page. `answers`: what was computed, `found`, `graph` and `texts`."""
    found, graph = answers.get("found"), answers.get("graph")
    values = {**FIXED, "held": held, "asked": asked, "found": found, "graph": graph, "problem": problem}
    values["texts"] = answers.get("texts", [])
    values["address"] = lambda **changed: LIVE.run(held, "trace", **{**asked, **changed})
    if shelf.history:
        traced = {name: value for name, value in asked.items() if name != "layer"}
        before, values["not_kept"] = remember(held, traced if found is not None and asked["prompt"] else None)
        values["history"] = [(each, LIVE.run(held, "trace", **{"reading": "", **each.asked})) for each in before]
    if graph is not None:
        from ffkv.run.graph.drawing import draw

        values["drawn"] = draw(graph, address=lambda *place: LIVE.memory(held, *place))
        options = [f"--{name}={value}" for name, value in _options(asked, answers["found"]).items()]
        words = ["ffkv", "graph", str(held.run.folder), asked["prompt"], *options, "--format=graph"]
        values["viewer"] = shlex.join([*words, "--output=graphs/prompt.json"])
    return render("trace.html", status=status, sends=True, **values, **(_shown(found, asked) if found else {}))


def _shown(found: "Trace", asked: Mapping[str, str]) -> dict[str, Any]:
    point, when, sort = asked.get("point", "output"), asked.get("when", "after"), asked.get("sort", "")
    shown, other = (found, found.changed) if when == "before" else (found.changed or found, found)
    tables = {"tokens": found.tokens, "layers": shown.layers, "deviations": shown.sums}
    tables["strongest"] = shown.strongest(STRONGEST)
    if found.edges is not None:
        tables["edges"] = found.strongest_edges(MOST_EDGES)
    # The table behind the heat map at the chosen position: per layer and point the top tokens.
    here = shown.predictions[shown.predictions["position"] == shown.position].sort_values("rank")
    return {
        **{name: table.to_dict("records") for name, table in tables.items()},
        **{"point": point, "sort": sort, "shown": shown, "other_when": "before" if when == "after" else "after"},
        "map": _map(shown, other or found, point),
        "here": [
            (int(str(layer)), {str(at): part.to_dict("records") for at, part in own.groupby("point")})
            for layer, own in here.groupby("layer")
        ],
        "by_layer": _by_layer(shown, sort == "logit", asked.get("layer", str(len(shown.layers) - 1))),
        "listed": shown.contributions["layer"].value_counts(),
        "changed": partial(_changed, found),
    }


def _map(shown: "Trace", other: "Trace", point: str) -> list[tuple[int, list[dict[str, Any]]]]:
    """Returns the heat map, the last layer first: the layer, and per position the top token and its probability.

    `other`: the same prompt on the other side of the changes. Of each cell, `moved` says whether its top token is another
    one there, and `other` which.
    """
    tables = (each.predictions for each in (shown, other))
    top, there = (table[(table["point"] == point) & (table["rank"] == 0)] for table in tables)
    top = top.assign(moved=there["token_id"] != top["token_id"], other=there["token"])
    return [
        (int(layer), rows.sort_values("position").to_dict("records"))
        for layer, rows in sorted(top.groupby("layer"), reverse=True)
    ]


def _by_layer(found: "Trace", by_logit: bool, layer: str) -> dict[int, dict[str, Any]]:
    """Of a layer, or of "all", the listed memories, the rest, and their sum: shares of a layer add up to 1.

    by_logit: the memories that change the chosen token's logit most come first; else those with the largest size.
    """
    by_layer = {}
    for each in found.layers["layer"] if layer == "all" else [int(layer)]:
        rows, rest = (table[table["layer"] == each] for table in (found.contributions, found.remainders))
        if by_logit:
            rows = rows.sort_values("logit", key=abs, ascending=False, kind="stable")
        parts = pd.concat([rows[["logit", "share"]], rest[["logit", "share"]]])
        largest, total = parts["logit"].abs().max(), parts.sum()
        by_layer[int(each)] = {
            **{"rows": rows.to_dict("records"), "rest": rest.to_dict("records")},
            **{name: float(total[name]) for name in parts},
            "largest": float(largest) if largest == largest else 0.0,
        }
    return by_layer


def _changed(found: "Trace", names: Iterable[str], factor: float | None) -> dict[str, str]:
    """Returns the questions `off` and `scale` with memories changed: to a factor, or back to 1 if that is None."""
    changes = {each: value for each, value in found.changes.items() if each not in {*names}}
    changes |= {} if factor is None else dict.fromkeys(names, factor)
    off = [each for each, value in changes.items() if value == 0]
    scale = [f"{each}:{value:g}" for each, value in changes.items() if value != 0]
    return {"off": ",".join(off), "scale": ",".join(scale)}
