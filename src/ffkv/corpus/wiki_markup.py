"""Takes the running text out of the markup of a wiki's page, in time that grows with its length alone."""

from __future__ import annotations

import html
import re
from collections.abc import Collection

# Stands where something was that has no plain text here. No page contains it, because XML has no such character.
HOLE = "\0"
MAX_DEPTH = 40  # of what is open inside one another; deeper marks stay, and are dropped with their paragraph
MINIMUM_CHARACTERS = 100  # of a paragraph; shorter ones are captions and labels
MEDIA = ("file", "image", "media", "category")  # links to them show no text; every wiki knows the English names
LISTED = "*#:;=|!"  # how lines begin that are of a list, a heading or a table, or indented

# What shows none of its content as text: formulas, programs, pictures. Without an end it reaches to that of the page.
SEALED = "chem|code|gallery|graph|hiero|imagemap|mapframe|math|nowiki|poem|pre|score|source|syntaxhighlight|timeline"
MARK = re.compile(
    r"(?P<nothing><!--.*?(?:-->|\Z)|<ref\b[^<>]*/>)"
    rf"|(?P<hole><(?P<sealed>{SEALED})\b[^<>]*?(?:/>|>.*?(?:</(?P=sealed)\s*>|\Z))|<br\b[^<>]*>)"
    r"|(?P<open>\{\{|\[\[|^[: ]*\{\||<(?:ref|su[bp])\b[^<>]*>)"
    r"|(?P<close>\}\}|\]\]|^\|\}(?!\})|</(?:ref|su[bp])\s*>)",
    re.S | re.I | re.M,
)
OPENED_BY = {"}}": "{{", "]]": "[[", "|}": "{|"}
RAISED = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")
LOWERED = str.maketrans("0123456789+-−", "₀₁₂₃₄₅₆₇₈₉₊₋₋")

EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\[\]]++ *+([^\[\]\n]*+)\]")
WITHOUT_TEXT = re.compile(r"\b(?:https?|ftp)://\S+|&#x?[0-9a-f]{9,}", re.I)  # addresses; characters that do not exist
QUOTES = re.compile("'{2,}")  # italic and bold; of four, one is an apostrophe
TAG = re.compile(r"</?(?!ref\b|su[bp]\b)[a-z][^<>]*>|__[A-Z]+__", re.I)
# A template directly behind a word or sign, with a blank or sign behind it, is a note such as "citation needed"; and one
# directly in front of a paragraph shows nothing.
NOTE = re.compile(
    rf"(?:(?<=[^\W\d_])|(?<=[.,;:!?)\]\"'”’»%])){HOLE}+(?=[\s.,;:!?)\]\"'”’»]|$)|^{HOLE}+(?=[\"'“«(]?[^\W\d_])"
)
BRACKETS = re.compile(r" ?\([^()]*\)")
LEFT_OVER = re.compile(rf"{HOLE}|\{{\{{|\}}\}}|\[\[|\]\]|\{{\||\|\}}|[<>]")
END = re.compile(r"[.!?…。！？؟।][\"'”’»)\]]*$")


def paragraphs(markup: str, media: Collection[str] = MEDIA) -> list[str]:
    """Returns the paragraphs of running text of a page, each on one line.

    Left out are headings, lists, indented lines, tables, pictures, references and notes; brackets that contain a template
    or a formula; and every paragraph that is then not whole: something is missing in it, it does not begin with a capital
    letter, a number or a sign, does not end with a sentence, or is shorter than `MINIMUM_CHARACTERS`. `media`: the
    namespaces whose links show no text, in small letters.
    """
    found: list[str] = []
    lines: list[str] = []
    for line in [*_without_marks(markup, media).split("\n"), ""]:
        if line.strip(f"{HOLE} ")[:1] not in ("", *LISTED):
            lines.append(line)
        elif lines:
            found.append(_plain(" ".join(lines)))
            lines = []
    return [text for text in found if _is_whole(text)]


def _without_marks(markup: str, media: Collection[str]) -> str:
    """Replaces what stands between two marks by what it shows, from the inside to the outside."""
    out: list[str] = []
    frames: list[tuple[str, int]] = []  # of what is open: its kind, and where its mark is in `out`
    place = 0
    for mark in MARK.finditer(markup):
        name = mark[0].strip("</>: ")[:3].lower()
        kind = OPENED_BY.get(name, name)
        opens = mark["open"] and len(frames) < MAX_DEPTH
        closes = mark["close"] and any(kind == other for other, _ in frames)
        if not (opens or closes or mark["hole"] or mark["nothing"]):
            continue  # it stays as it is
        out.append(markup[place : mark.start()])
        place = mark.end()
        if opens:
            frames.append((kind, len(out)))
            out.append(mark[0])
        elif closes:
            closed = ""
            while closed != kind:  # what was opened inside, and not closed, stays
                closed, start = frames.pop()
            out[start:] = [_shown(kind, "".join(out[start + 1 :]), media)]
        elif mark["hole"]:
            out.append(f" {HOLE} " if name == "br" else HOLE)
    return "".join([*out, markup[place:]])


def _shown(kind: str, content: str, media: Collection[str]) -> str:
    """Returns what a template, link, table or tag shows in running text."""
    if kind == "{{":
        name = content.partition("|")[0].strip()
        return name.replace("'", "&#39;") if name.startswith("'") else HOLE  # {{'s}}
    if kind == "[[":
        target, bar, label = content.partition("|")
        space, colon, _ = target.partition(":")
        if colon and space.strip().lower() in media:
            return ""
        return label.rpartition("|")[2] if bar else target.lstrip(":")
    if kind in ("sup", "sub"):
        digits = content.strip().translate(RAISED if kind == "sup" else LOWERED)
        return HOLE if re.search(r"[^⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉₊₋]", digits) else digits
    return "\n\n" if kind == "{|" else ""


def _plain(text: str) -> str:
    """Returns a paragraph without the marks inside a line, notes, and brackets in which something is missing."""
    text = EXTERNAL_LINK.sub(lambda link: link[1] or HOLE, text)
    text = QUOTES.sub(lambda quotes: "'" if len(quotes[0]) == 4 else "", WITHOUT_TEXT.sub(HOLE, text))
    text = NOTE.sub("", " ".join(html.unescape(TAG.sub("", text)).split()))
    return BRACKETS.sub(lambda some: some[0] if re.search(r"\w", some[0]) and HOLE not in some[0] else "", text).strip()


def _is_whole(text: str) -> bool:
    first = text.lstrip("\"'“‘«([")[:1]
    return (
        len(text) >= MINIMUM_CHARACTERS
        and not first.islower()
        and bool(END.search(text))
        and not LEFT_OVER.search(text)
    )
