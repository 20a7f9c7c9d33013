"""The application: which address shows what, and what an error looks like."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ffkv.apps.explorer import page_annotate, page_compare, page_memory, page_run, page_search, page_trace
from ffkv.apps.explorer.pages import LIVE, error_page, render, report_file, static, with_query
from ffkv.apps.explorer.security import Guard, Guarded
from ffkv.apps.explorer.shelf import Held, Shelf
from ffkv.base.errors import UserError
from ffkv.base.terminal import say
from ffkv.run.results.memory_name import check_memory, parse_memory_name

STATIC = {
    "explorer.css": "text/css; charset=utf-8",
    "explorer.js": "text/javascript; charset=utf-8",
    "annotate.js": "text/javascript; charset=utf-8",
}
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class NoSuch(UserError):
    """There is no page of this address."""


def create_application(shelf: Shelf, guard: Guard) -> Starlette:
    """Creates the explorer of the runs on a shelf, for the user who has the secrets of a guard."""
    routes = [Route(path, partial(_answer, partial(page, shelf)), methods=["GET"]) for path, page in PAGES.items()]
    routes.append(Route(ITEM, partial(_keep, shelf), methods=["POST"]))
    guarded = Middleware(Guarded, guard=guard, error_page=error_page, keeps=page_annotate.keeps)
    return Starlette(routes=routes, middleware=[guarded], exception_handlers={HTTPException: _no_page})


def _report(shelf: Shelf, request: Request) -> Response:
    file = report_file(_held(shelf, request))
    if not file.is_file():
        raise NoSuch(f"{file} does not exist. The workflow writes it: `snakemake`.")
    return HTMLResponse(file.read_bytes(), headers={"Content-Security-Policy": REPORT_POLICY})


def _exported(shelf: Shelf, request: Request) -> Response:
    """Redirects a link of the report, which names an exported page, to the live page."""
    held = _held(shelf, request)
    with _no_such():
        layer, index = parse_memory_name(request.path_params["page"].removesuffix(".html"))
        check_memory(layer, index, held.sizes)
    return RedirectResponse(LIVE.memory(held, layer, index), 303)


def _go(shelf: Shelf, request: Request) -> Response:
    held = _held(shelf, request)
    with _no_such():
        return page_search.go(held, request.query_params.get("q", ""))


def _compare(shelf: Shelf, request: Request) -> Response:
    a, b, *memories = (request.query_params.get(each, "") for each in ("a", "b", "memory", "memory_b"))
    with _no_such():
        runs = [shelf.run(a or next(iter(shelf.runs))), shelf.run(b or [*shelf.runs][-1])]
    return page_compare.compare(list(shelf.runs), runs, memories)


def _comparison(shelf: Shelf, request: Request) -> Response:
    with _no_such():
        page = page_run.comparison(shelf, request.path_params["name"])
    return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


def _item(shelf: Shelf, request: Request, body: bytes | None = None) -> Response:
    """Shows an item of a sheet, or keeps what its page sends."""
    held, place = _held(shelf, request), request.path_params
    sheet, annotator, number = page_annotate.sheet_of(held, place["sheet"]), place["annotator"], place["number"]
    if body is None:
        return page_annotate.item(held, sheet, annotator, number, request.query_params.get("patterns", ""))
    return page_annotate.keep(held, sheet, annotator, number, body)


async def _keep(shelf: Shelf, request: Request) -> Response:
    """Keeps what a person says of an item."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > page_annotate.LARGEST:
                return error_page(413, "This is too long", "Shorten the words.")
    except ClientDisconnect:
        return Response()  # nobody waits for it
    return await run_in_threadpool(_answer, partial(_item, shelf, body=body), request)


def _static_file(shelf: Shelf, request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise NoSuch("There is no such file.")
    return Response(static(name), media_type=STATIC[name], headers={"Cache-Control": "private, max-age=3600"})


ITEM = "/r/{run}/annotate/{sheet}/{annotator}/{number:int}"
# Address: what shows its page.
PAGES: dict[str, Callable[[Shelf, Request], Response]] = {
    "/": lambda shelf, request: page_run.runs(shelf),
    "/r/{run}/": lambda shelf, request: page_run.run(_held(shelf, request)),
    "/r/{run}/report": _report,
    "/r/{run}/memories": lambda shelf, request: page_search.memories(_held(shelf, request), request.query_params),
    "/r/{run}/memories/{page}": _exported,
    "/r/{run}/go": _go,
    "/r/{run}/m/{layer}/{index}": lambda shelf, request: page_memory.memory(
        shelf, *_memory_of(shelf, request), request.query_params
    ),
    "/r/{run}/m/{layer}/{index}/similar": lambda shelf, request: page_memory.similar(*_memory_of(shelf, request)),
    "/r/{run}/trace": lambda shelf, request: page_trace.trace(_held(shelf, request), shelf, request.query_params),
    "/compare": _compare,
    "/comparisons/{name}": _comparison,
    "/annotate": lambda shelf, request: page_annotate.overview(shelf),
    "/annotate/{sheet}": lambda shelf, request: page_annotate.overview(shelf, request.path_params["sheet"]),
    "/r/{run}/annotate/{sheet}": lambda shelf, request: page_annotate.people(
        _held(shelf, request), request.path_params["sheet"]
    ),
    "/r/{run}/annotate/{sheet}/{annotator}": lambda shelf, request: page_annotate.continue_at(
        _held(shelf, request), request.path_params["sheet"], request.path_params["annotator"]
    ),
    ITEM: _item,
    "/static/{name}": _static_file,
}


@contextlib.contextmanager
def _no_such() -> Iterator[None]:
    """Inside the `with` statement, what a user cannot ask for is a page that does not exist."""
    try:
        yield
    except UserError as error:
        raise NoSuch(str(error)) from error


def _answer(function: Callable[[Request], Response], request: Request) -> Response:
    """Runs a page's function. What goes wrong becomes a page; nothing of the address's questions goes to the log."""
    try:
        return function(request)
    except (NoSuch, page_annotate.NoItem) as error:
        return _problem(request, 404, "There is no such page", str(error))
    except _OtherData as error:
        return error.args[0]
    except UserError as error:
        return _problem(request, 500, "This cannot be shown", str(error))
    except Exception as error:
        from ffkv.base.process.defect import explain

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


def _no_page(request: Request, error: Exception) -> Response:
    return error_page(404, "There is no such page", "Start at the list of runs.")


class _OtherData(Exception):
    """The address is about other data than the run of its name. Its argument is the page that says so."""


def _held(shelf: Shelf, request: Request) -> Held:
    """Returns the run that an address names. Raises NoSuch if it is not open."""
    with _no_such():
        held = shelf.run(request.path_params["run"])
    if (data := request.query_params.get("data", held.data)) != held.data:
        rest = {name: value for name, value in request.query_params.items() if name != "data"}
        address = with_query(LIVE.run(held) + _path(request).split("/", 3)[3], rest)
        raise _OtherData(render("other_data.html", held=held, status=409, asked=data, address=address))
    return held


def _memory_of(shelf: Shelf, request: Request) -> tuple[Held, int, int]:
    """Returns the run, the layer and the memory that an address names. Raises NoSuch if there is no such memory."""
    held = _held(shelf, request)
    layer, index = request.path_params["layer"], request.path_params["index"]
    if not (layer.isdecimal() and index.isdecimal() and len(layer + index) < 20):
        raise NoSuch("A memory's address ends with its layer and its number, such as m/3/17.")
    with _no_such():
        check_memory(int(layer), int(index), held.sizes)
    return held, int(layer), int(index)
