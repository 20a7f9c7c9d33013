"""The page of a trace: a prompt, its predictions by layer, its memories, what changes without some of them, how the model
goes on, and the graph of the prediction."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, RedirectResponse, Response

from ffkv.apps.explorer import history
from ffkv.apps.explorer.pages import LIVE, error_page, real, render, token_of, whole
from ffkv.apps.explorer.shelf import Held, LruCache, Shelf, import_model_code
from ffkv.base.errors import UserError
from ffkv.base.files.checksums import Damaged
from ffkv.base.files.provenance import Foreign

if TYPE_CHECKING:  # needs torch, which takes seconds to import
    from ffkv.run.graph.result import Graph
    from ffkv.run.trace.result import Trace

LONGEST = 20_000  # characters of a prompt
STRONGEST = 10  # memories of all layers
MOST_CONNECTED = 30  # memories between which edges are measured
MOST_EDGES = 40  # that are shown
MOST_TOKENS = 200  # that the model writes behind a prompt
POINTS = {"output": "block output", "residual": "residual", "ffn": "FF output"}
WHEN = ("after", "before")  # the changes: which states the tables and the map show
CONTINUED = {"tokens": whole, "temperature": real, "seed": whole}  # how the text goes on, and how each is read
GRAPHED = ("graph", "wrong", "other", "baseline")  # what is asked of a graph
FIELDS = (
    *("prompt", "reading", "position", "word", "off", "scale", "everywhere", "point", "sort", "when", "edges"),
    *(*CONTINUED, *GRAPHED),
)


class Busy(UserError):
    """Another trace or text is being computed."""


def trace(held: Held, shelf: Shelf, query: QueryParams) -> Response:
    """Returns the page of a trace, or its JSON; without a prompt only the form. One trace is computed at a time.

    An address that names `tokens` also asks how the model goes on, and one that names `graph` asks for the graph of the prediction.
    """
    asked = {name: query[name].replace("\r\n", "\n") for name in FIELDS if query.get(name)}
    if off := ", ".join(filter(None, query.getlist("off"))):  # a box that is ticked names one more memory
        asked["off"] = off
    if "prompt" not in query:
        held.load_in_background()
        return _page(held, shelf, asked)
    asked.setdefault("prompt", "")
    json = query.get("format") == "json"
    found = None
    try:
        found = _compute(held, shelf, asked)
        graph = _graph(held, shelf, asked, found) if "graph" in asked else None
        texts = _continue(held, shelf, asked) if "tokens" in asked else []
    except (Damaged, Foreign):
        raise
    except UserError as error:
        status = 429 if isinstance(error, Busy) else 400
        told = (
            JSONResponse({"error": str(error)}, status)
            if json
            else _page(held, shelf, asked, found, [], str(error), status)
        )
        told.headers.update({"Retry-After": "5"} if status == 429 else {})
        return told
    if json:
        more = ({"texts": texts} if texts else {}) | ({"graph": graph.to_dict()} if graph else {})
        return JSONResponse(found.to_dict() | more)
    return _page(held, shelf, asked, found, texts, graph=graph)


def forget(held: Held, body: bytes) -> Response:
    """Clears the person's history of traces, and leads back to the page. The form needs to say nothing."""
    try:
        history.clear(held)
    except UserError as error:
        return error_page(500, "The history cannot be cleared", str(error))
    return RedirectResponse(LIVE.run(held, "trace"), 303)


def _compute(held: Held, shelf: Shelf, asked: Mapping[str, str]) -> "Trace":
    """Computes what an address asks. Raises Busy, and UserError as `ffkv.run.trace.step.trace`."""
    prompt = asked["prompt"]
    if len(prompt) > LONGEST:
        raise UserError(f"The prompt has {len(prompt):,} characters. At most {LONGEST:,} are read: shorten it.")
    for name, valid in (("point", POINTS), ("when", WHEN)):
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

    def compute() -> "Trace":
        from ffkv.run.trace.step import trace as trace_prompt  # torch

        return trace_prompt(held.run, prompt, **options)

    found: Trace = _once(shelf, held.traces, prompt, options, compute)
    return found


def _continue(held: Held, shelf: Shelf, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Computes how the model goes on: rows of `ffkv.generate`. Raises Busy, and UserError as that does."""
    options = _changes(asked) | {name: read(asked[name], name) for name, read in CONTINUED.items() if name in asked}
    if options["tokens"] > MOST_TOKENS:
        raise UserError(
            f"tokens is {options['tokens']:,}. The explorer writes at most {MOST_TOKENS}; `ffkv generate` writes more."
        )

    def compute() -> list[dict[str, Any]]:
        from ffkv.run.trace.generate import generate  # torch

        return generate(held.run, asked["prompt"], **options).to_dict("records")

    texts: list[dict[str, Any]] = _once(shelf, held.texts, asked["prompt"], options, compute)
    return texts


def _graph(held: Held, shelf: Shelf, asked: Mapping[str, str], found: "Trace") -> "Graph":
    """Computes the graph of a prediction. Raises Busy, and UserError as `ffkv.run.graph.step.graph`."""
    if found.position != len(found.tokens) - 1:
        raise UserError("A graph is about the prediction behind the last token. Choose the last position.")
    options = {name: asked[name].replace("␣", " ") for name in GRAPHED[1:] if name in asked}

    def compute() -> "Graph":
        from ffkv.run.graph.step import graph  # torch

        return graph(held.run, asked["prompt"], answer=found.token, **options)

    made: Graph = _once(shelf, held.graphs, asked["prompt"], {"answer": found.token, **options}, compute)
    return made


def _changes(asked: Mapping[str, str]) -> dict[str, Any]:
    return {name: asked[name] for name in ("off", "scale") if name in asked}


def _once(shelf: Shelf, kept: LruCache, prompt: str, options: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """Returns the answer that is kept, else computes it. Raises Busy while another one is computed."""
    question = (prompt, *options.items())
    lists = "@" in f"{options.get('off')}{options.get('scale')}"  # which may have other memories now
    if not lists and (found := kept.kept(question)):  # another view of the same
        return found
    if not shelf.model.acquire(blocking=False):
        raise Busy("The explorer is computing another trace, and computes one at a time. Try again in a few seconds.")
    try:
        import_model_code()
        found = compute()
        return found if lists else kept.get(question, lambda: found)
    finally:
        shelf.model.release()


def _page(
    held: Held,
    shelf: Shelf,
    asked: dict[str, str],
    found: "Trace | None" = None,
    texts: Iterable[Mapping[str, Any]] = (),
    problem: str = "",
    status: int = 200,
    graph: "Graph | None" = None,
) -> Response:
    values: dict[str, Any] = {
        "graph": graph,
        "graphed": GRAPHED,
        "held": held,
        "asked": asked,
        "found": found,
        "problem": problem,
        "longest": LONGEST,
    }
    values |= {"texts": texts, "most_tokens": MOST_TOKENS, "continued": [*CONTINUED]}
    values |= {"points": POINTS, "address": lambda **changed: LIVE.run(held, "trace", **{**asked, **changed})}
    if shelf.history:
        before, values["not_kept"] = history.remember(held, asked if found is not None and asked["prompt"] else None)
        values["history"] = [(each, LIVE.run(held, "trace", **{"reading": "", **each.asked})) for each in before]
    if graph is not None:
        from ffkv.run.graph.drawing import draw

        values["drawn"] = draw(graph, address=lambda *place: LIVE.memory(held, *place))
    if found is not None:
        point, when = asked.get("point", "output"), asked.get("when", "after")
        shown, other = (found, found.changed) if when == "before" else (found.changed or found, found)
        values |= {
            "point": point,
            "shown": shown,
            "other_when": next(each for each in WHEN if each != when),
            "tokens": found.tokens.to_dict("records"),
            "map": _map(shown, other or found, point),
            "here": _here(shown),
            "layers": shown.layers.to_dict("records"),
            "strongest": shown.strongest(STRONGEST).to_dict("records"),
            "sort": asked.get("sort", ""),
            "by_layer": _by_layer(shown, asked.get("sort") == "logit"),
            "edges": [] if found.edges is None else found.strongest_edges(MOST_EDGES).to_dict("records"),
            "most_connected": MOST_CONNECTED,
            "deviations": shown.sums.to_dict("records"),
            "without": lambda name: _changed(found, [name], None),
            "with_off": lambda name: _changed(found, [name], 0.0),
            "with_scale": lambda name: _changed(found, [name], 2.0),
            "graph_off": _changed(
                found, [] if graph is None else {name.split("@")[0]: None for name in graph.nodes["name"]}, 0.0
            ),
            "all_off": _changed(found, shown.strongest(STRONGEST)["name"], 0.0),
        }
    return render("trace.html", status=status, sends=True, **values)


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


def _here(found: "Trace") -> list[tuple[int, dict[str, list[dict[str, Any]]]]]:
    """Returns the table behind the heat map at the chosen position: per layer and point the top tokens."""
    rows = found.predictions[found.predictions["position"] == found.position]
    by_layer: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for (layer, point), part in rows.sort_values("rank").groupby(["layer", "point"]):
        by_layer.setdefault(int(layer), {})[str(point)] = part.to_dict("records")
    return [*by_layer.items()]


def _by_layer(found: "Trace", by_logit: bool) -> dict[int, dict[str, Any]]:
    """Per layer the listed memories, the rest, and their sum: shares of a layer add up to 1.

    by_logit: the memories that change the chosen token's logit most come first; else those with the largest size.
    """
    by_layer = {}
    for layer in found.layers["layer"]:
        rows = found.contributions[found.contributions["layer"] == layer]
        rest = found.remainders[found.remainders["layer"] == layer]
        if by_logit:
            rows = rows.sort_values("logit", key=abs, ascending=False, kind="stable")
        largest = pd.concat([rows["logit"], rest["logit"]]).abs().max()
        by_layer[int(layer)] = {
            "rows": rows.to_dict("records"),
            "rest": rest.to_dict("records"),
            "share": float(rows["share"].sum() + rest["share"].sum()),
            "logit": float(rows["logit"].sum() + rest["logit"].sum()),
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
