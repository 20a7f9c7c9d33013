"""The application: which address shows what, and what an error looks like."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ffkv.base.errors import UserError
from ffkv.base.terminal import plain, say
from ffkv_explorer import page_behaviours, page_memory, page_run, page_search, page_trace
from ffkv_explorer.pages import LIVE, error_page, judging, render, static, with_query
from ffkv_explorer.security import Guard, Guarded
from ffkv_explorer.shelf import NoSuch, Shelf

LARGEST = 2**18  # bytes that a form may send
PACKED = 4096  # bytes from which on an answer is compressed, if the browser takes it
STATIC = {"explorer.css": "text/css"} | {f"{name}.js": "text/javascript" for name in ("explorer", "annotate", "graph")}


def create_application(shelf: Shelf, guard: Guard) -> Starlette:
    """Creates the explorer of the runs on a shelf, for the user who has the secrets of a guard."""
    routes = [Route(path, partial(_answer, shelf, page), methods=["GET"]) for path, page in PAGES.items()]
    routes += [Route(path, partial(_keep, shelf, keep), methods=["POST"]) for path, keep in KEEPING.items()]
    guarded = Middleware(Guarded, guard=guard, error_page=error_page)
    # Level 4 takes a third of the time of 9, and its answers are a tenth larger.
    packed = Middleware(GZipMiddleware, minimum_size=PACKED, compresslevel=4)

    # Of each request: its links have the secret part of the address.
    def no_page(request: Request, error: Any) -> Response:
        if error.status_code == 405:
            return error_page(405, "The explorer changes nothing here", "This page is asked for with GET.")
        return error_page(404, "There is no such page", "Start at the list of runs.")

    return Starlette(routes=routes, middleware=[guarded, packed], exception_handlers={HTTPException: no_page})


async def _keep(shelf: Shelf, keep: Callable[..., Response], request: Request) -> Response:
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > (page_behaviours.LONGEST if keep is page_behaviours.ask else LARGEST):
                return error_page(413, "This is too long", "Shorten the words.")
    except ClientDisconnect:
        return Response()  # nobody waits for it
    kind = request.headers.get("content-type", "")
    return await run_in_threadpool(_answer, shelf, keep, request, body=body, kind=kind)


def _static_file(name: str) -> Response:
    if name not in STATIC:
        raise NoSuch("There is no such file.")
    return Response(static(name), media_type=STATIC[name], headers={"Cache-Control": "private, max-age=3600"})


# Address: what shows its page. A function gets what its parameters name: the shelf, the query, and parts of the path.
PAGES: dict[str, Callable[..., Response]] = {
    "/": page_run.runs,
    "/r/{run}/": page_run.run,
    "/r/{run}/claims.svg": page_run.claims,
    "/r/{run}/report": page_run.report,
    "/r/{run}/figures/{name}": page_run.figure,
    "/r/{run}/memories": page_search.memories,
    "/r/{run}/memories/{page}": page_search.exported,
    "/r/{run}/go": page_search.go,
    "/r/{run}/complete": page_search.complete,
    "/r/{run}/m/{layer}/{index}": page_memory.memory,
    "/r/{run}/m/{layer}/{index}/similar": page_memory.similar,
    "/r/{run}/e/{name}": page_memory.expert,
    "/r/{run}/collections": page_search.lists,
    "/r/{run}/behaviours": page_behaviours.overview,
    "/r/{run}/behaviours/{key}": page_behaviours.answer,
    "/r/{run}/behaviours/{key}/zip": page_behaviours.archive,
    "/r/{run}/trace": page_trace.trace,
    "/compare": page_memory.compare,
    "/comparisons/{name}": page_run.comparison,
    "/static/{name}": _static_file,
}
# Address: what keeps a form that is sent there, as `body`.
KEEPING: dict[str, Callable[..., Response]] = {
    "/r/{run}/collections": page_search.keep,
    "/r/{run}/traces": page_trace.forget,
    "/r/{run}/behaviours": page_behaviours.ask,
    "/r/{run}/behaviours/{key}": page_behaviours.change,
}
if sheets := judging():
    PAGES |= sheets.PAGES
    KEEPING |= sheets.KEEPING


def _answer(shelf: Shelf, page: Callable[..., Response], request: Request, **sent: Any) -> Response:
    """Runs a page's function. What goes wrong becomes a page; nothing of the address's questions goes to the log."""
    try:
        given = {"shelf": shelf, "query": request.query_params, **request.path_params, **sent}
        if "run" in given:
            held = shelf.run(request.path_params["run"])
            if (reading := request.query_params.get("reading", "head")) != "head":
                held = held.read_as(plain(reading))
            given["held"] = held
            if (data := request.query_params.get("data", held.data)) != held.data:
                rest = {name: value for name, value in request.query_params.items() if name != "data"}
                address = with_query(LIVE.run(held, _path(request).split("/", 3)[3], reading=""), rest)
                return render("other_data.html", held=held, status=409, asked=data, address=address)
        if "layer" in given:
            given["layer"], given["index"] = held.place(f"L{given['layer']}.{given['index']}")
        return page(**{name: given[name] for name in inspect.signature(page).parameters if name in given})
    except NoSuch as error:
        return _problem(request, 404, "There is no such page", str(error))
    except UserError as error:
        return _problem(request, 500, "This cannot be shown", str(error))
    except Exception as error:
        from ffkv.base.fault import explain

        message, _ = explain(error)
        say(f"{_path(request)}: {message}", error=True)
        return _problem(request, 500, "This cannot be shown", message)


def _path(request: Request) -> str:
    """Returns the path of an address without its secret beginning."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope["root_path"])


def _problem(request: Request, status: int, heading: str, text: str) -> Response:
    if request.query_params.get("format") == "json":
        return JSONResponse({"error": text}, status)
    return error_page(status, heading, text)
