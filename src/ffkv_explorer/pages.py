"""Templates, the addresses that they link to, what they draw, and what every page has: the head, the foot, errors.

Colours are classes of the style sheet: pages may not set styles themselves.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import jinja2
import numpy as np
from markupsafe import Markup
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import HTMLResponse, Response

from ffkv.base.errors import UserError
from ffkv.base.terminal import plain, say
from ffkv.run.report.wording import make_environment
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import unknown
from ffkv.run.results.text import number, shortened
from ffkv_explorer.shelf import Held

# Of what the report draws and writes: it brings its own style. A page of it also brings a script, which its hash names.
DRAWING_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

STEPS = 8  # of the scale on each side of zero
BIN = Markup(
    '<g><title>{}: {} prefixes</title><rect x="{}" y="{:.1f}" width="36" height="{:.1f}" class="{}"/>'
    '<text x="{}" y="87">{}</text></g>'
)
FIELDS = 5000  # that a form may send


def with_query(address: str, query: dict[str, Any]) -> str:
    """Returns an address with those of the questions that are asked, in order, behind those that it asks already."""
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}" if asked else address


@functools.cache
def judging() -> ModuleType | None:
    """The pages of sheets. None, after a sentence, if this package cannot be used: then no page is for judging."""
    try:
        return import_module("ffkv_explorer.page_annotate")
    except Exception as error:  # whatever is wrong in another package
        say(f"there are no pages of sheets, because ffkv_annotation cannot be imported ({error}).", error=True)
        return None


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


class Exported(Live):
    """Makes the addresses between the files of one folder. A memory without a page has none."""

    exported = True

    def __init__(self, memories: Sequence[tuple[int, int]]):
        """memories: layer and number of those that have pages."""
        self._memories = set(memories)

    def run(self, held: Held, part: str = "", **query: Any) -> str:
        """Returns the file of the run."""
        return "index.html"

    def memory(self, held: Held, layer: int, index: int, part: str = "", **query: Any) -> str:
        """Returns the file of a memory; "" if it has none."""
        return f"{memory_name(layer, index)}.html" if (layer, index) in self._memories else ""

    def pages(self, held: Held) -> list[tuple[str, str]]:
        """Returns name and file of each memory that has a page."""
        return [(memory_name(*place), self.memory(held, *place)) for place in sorted(self._memories)]


@functools.cache
def environment() -> jinja2.Environment:
    """Returns the templates of the explorer, and those that it shares with the report."""
    made = make_environment(("ffkv_explorer", "templates"), ("ffkv.run.report", "."))
    made.filters |= {"plain_token": plain_token}
    made.globals |= {each.__name__: each for each in (histogram, step, level, with_query)}
    return made


def plain_token(text: str) -> str:
    """Returns a token for a place that can hold no markup, such as a title."""
    return plain(shortened(text, 200)).replace("\n", "\\n").replace("\t", "\\t").replace(" ", "␣")


@functools.cache
def static(name: str) -> str:
    """Returns a file of ours that pages refer to."""
    return files("ffkv_explorer").joinpath("static", name).read_text(encoding="utf-8")


def render(
    template: str, *, held: Held | None = None, status: int = 200, sends: bool = False, **values: Any
) -> HTMLResponse:
    """Returns a page as an answer. `held`: the run of its head and foot; `sends`: whether a form of it sends what is kept."""
    # A browser names the page that sends a form only if the page allows it, and the guard asks for the name.
    headers = {"Referrer-Policy": "same-origin"} if sends else {}
    return HTMLResponse(write(template, held=held, sends=sends, **values), status, headers)


def write(template: str, *, held: Held | None = None, links: Live = LIVE, **values: Any) -> str:
    """Returns a page as HTML."""
    style = Markup(static("explorer.css")) if links.exported else ""
    return environment().get_template(template).render(held=held, links=links, style=style, **values)


def drawn(content: str | bytes, media_type: str = "text/html", **headers: str) -> Response:
    """Returns what the report draws or writes as an answer: it brings its own style, a page also the report's script."""
    script = f"; script-src 'sha256-{environment().globals['script_hash']}'" if media_type == "text/html" else ""
    return Response(content, 200, {"Content-Security-Policy": DRAWING_POLICY + script, **headers}, media_type)


def error_page(status: int, heading: str, text: str, script: str = "") -> HTMLResponse:
    """Returns a page that says what is wrong, and what to do. It says nothing about the runs."""
    return render("error.html", status=status, heading=heading, text=plain(text), script=Markup(script))


def read_form(body: bytes) -> ImmutableMultiDict[str, str]:
    """Returns the fields of a form that a page sends. Raises ValueError if the body is none, or has too many."""
    return ImmutableMultiDict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS))


def check_query(query: Iterable[str], *known: str) -> None:
    """Refuses an address that asks what its page does not know. Raises UserError, which names what is most like it."""
    for name in query:
        if name not in (*known, "reading", "data", "format"):
            raise unknown("condition", name, [*known])


def whole(text: str, name: str) -> int:
    """Returns a whole number that a user wrote. `name`: what it is. Raises UserError if it is none."""
    with contextlib.suppress(ValueError):
        return int(text)
    raise UserError(f"{name} is {text!r}. Write a whole number, such as 3.")


def real(text: str, name: str) -> float:
    """Returns a number that a user wrote. `name`: what it is. Raises UserError if it is none."""
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(text)):
            return number
    raise UserError(f"{name} is {text!r}. Write a number, such as 0.5.")


def token_of(text: str) -> str | int:
    """Returns a token that a user wrote: by its text, or by its id, as #464."""
    digits = text[1:]
    return int(digits) if text.startswith("#") and digits.isdecimal() and len(digits) < 10 else text


def step(value: float, largest: float) -> str:
    """Returns the class of a value on the signed scale: `p1` to `p8` above zero, `n1` to `n8` below, `zero`.

    `largest`: the value, without sign, at the end of the scale.
    """
    if not np.isfinite(value) or not largest > 0:
        return "zero"
    height = min(STEPS, int(np.ceil(STEPS * abs(value) / largest - 1e-9)))
    return "zero" if height == 0 else f"{'p' if value > 0 else 'n'}{height}"


def level(share: float) -> str:
    """Returns the class of a share on a scale from 0 to 1: `q0` to `q8`."""
    return f"q{min(STEPS, max(0, round(STEPS * share)))}" if np.isfinite(share) else "q0"


def histogram(lows: Iterable[float], counts: Iterable[int]) -> Markup:
    """Returns the histogram of a coefficient with logarithmic heights and a word for each bin, which is read out."""
    lows, counts = list(lows), list(counts)
    shown = max((place for place, count in enumerate(counts) if count), default=0) + 1
    tallest = max(np.log1p(max(counts)), 1)
    parts, told = [], []
    for place, (low, count) in enumerate(zip(lows[:shown], counts)):
        height = 70 * float(np.log1p(count)) / tallest
        label = "≤ 0" if low < 0 else f"{low:.3g}"
        left, look = 40 * place, "rests" if low < 0 else "fires"
        parts.append(BIN.format(label, number(count), left, 74 - height, height, look, left + 18, label))
        told.append(f"{label}: {number(count)}")
    label = "Prefixes by coefficient, each bin by its lower end. " + "; ".join(told)
    return Markup('<svg class="histogram" role="img" aria-label="{}" viewBox="0 0 {} 92">{}</svg>').format(
        label, 40 * max(shown, 8), Markup("").join(parts)
    )
