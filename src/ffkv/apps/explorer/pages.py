"""Templates, the addresses that they link to, and what every page has: the head, the foot, errors."""

import functools
import math
from contextvars import ContextVar
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.responses import HTMLResponse

from ffkv.apps.explorer import drawing
from ffkv.apps.explorer.shelf import Held
from ffkv.base.errors import UserError
from ffkv.base.terminal import plain
from ffkv.run.report.templates import make_environment
from ffkv.run.results.text import shortened

# Of what the report draws and writes: it brings its own style.
DRAWING_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def with_query(address: str, query: dict[str, Any]) -> str:
    """Returns an address with those of the questions that are asked, in order, behind those that it asks already."""
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}" if asked else address


BASE: ContextVar[str] = ContextVar("BASE", default="")  # how the addresses of the explorer that answers begin


class Live:
    """Makes the addresses of the explorer."""

    exported = False

    def at(self, path: str) -> str:
        """Returns the address of a path, such as "/annotate"."""
        return BASE.get() + path

    def run(self, held: Held, part: str = "", **query: Any) -> str:
        """Returns the address of a run, or of a part of it: "report", "memories", "trace"."""
        return with_query(self.at(f"/r/{quote(held.name, safe='')}/{part}"), {**held.asks, **query})

    def memory(self, held: Held, layer: int, index: int, part: str = "", **query: Any) -> str:
        """Returns the address of a memory or of a part of its page; "" if it has no page."""
        return self.run(held, f"m/{layer}/{index}{part}", **query)


LIVE = Live()


def report_file(held: Held) -> Path:
    """Returns the path where the workflow writes the report of a run."""
    folder = held.run.folder.resolve()
    return folder.parent.parent / "reports" / folder.name / "index.html"


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the templates of the explorer, and those that it shares with the report."""
    made = make_environment(("ffkv.apps.explorer", "templates"), ("ffkv.run.report", "."))
    made.filters |= {"plain_token": plain_token}
    made.globals |= {"draw": drawing, "with_query": with_query}
    return made


def plain_token(text: str) -> str:
    """Returns a token for a place that can hold no markup, such as a title."""
    return plain(shortened(text, 200)).replace("\n", "\\n").replace("\t", "\\t").replace(" ", "␣")


@functools.cache
def static(name: str) -> str:
    """Returns a file of ours that pages refer to."""
    return files("ffkv.apps.explorer").joinpath("static", name).read_text(encoding="utf-8")


def render(
    template: str,
    *,
    held: Held | None = None,
    links: Live = LIVE,
    status: int = 200,
    sends: bool = False,
    **values: Any,
) -> HTMLResponse:
    """Returns a page as an answer. `held`: the run that it is about, for its head and foot; `sends`: it has a form that
    sends something to be kept.
    """
    # A browser names the page that sends a form only if the page allows it, and the guard asks for the name.
    headers = {"Referrer-Policy": "same-origin"} if sends else {}
    return HTMLResponse(write(template, held=held, links=links, sends=sends, **values), status, headers)


def write(template: str, *, held: Held | None = None, links: Live = LIVE, **values: Any) -> str:
    """Returns a page as HTML."""
    style = Markup(static("explorer.css")) if links.exported else ""
    return environment().get_template(template).render(held=held, links=links, style=style, **values)


def error_page(status: int, heading: str, text: str, script: str = "") -> HTMLResponse:
    """Returns a page that says what is wrong, and what to do. It says nothing about the runs."""
    return render("error.html", status=status, heading=heading, text=plain(text), script=Markup(script))


def whole(text: str, name: str) -> int:
    """Returns a whole number that a user wrote. `name`: what it is. Raises UserError if it is none."""
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{name} is {text!r}. Write a whole number, such as 3.") from error


def real(text: str, name: str) -> float:
    """Returns a number that a user wrote. `name`: what it is. Raises UserError if it is none."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} is {text!r}. Write a number, such as 0.5.")
    return number


def token_of(text: str) -> str | int:
    """Returns a token that a user wrote: by its text, or by its id, as #464."""
    digits = text[1:]
    return int(digits) if text.startswith("#") and digits.isdecimal() and len(digits) < 10 else text
