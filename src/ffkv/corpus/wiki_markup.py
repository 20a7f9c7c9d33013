"""Reads the articles of a dump of a wiki, such as Wikipedia: XML that MediaWiki writes, and the running text in its markup.

Both take time that grows with the length alone.
"""

import html
import re
from collections.abc import Collection, Iterator
from typing import BinaryIO
from xml.parsers import expat

from ffkv.base.settings.messages import shown
from ffkv.corpus.document import Document
from ffkv.corpus.raw_file import unreadable
from ffkv.corpus.sentences import PARAGRAPH

LARGEST_PAGE = 2**24  # bytes of XML; MediaWiki itself refuses texts above 2 MiB
MAX_ELEMENTS = 100  # inside one another; a dump has five
CHUNK = 2**16  # bytes that are read at a time
KEPT = ("title", "ns", "text")  # elements of a page whose content counts
MEDIA_KEYS = ("-2", "6", "14")  # numbers of the namespaces in MEDIA, whose names depend on the language

# Stands where something was that has no plain text here. No page contains it, because XML has no such character.
HOLE = "\0"
MAX_DEPTH = 40  # of what is open inside one another; deeper marks stay, and are dropped with their paragraph
MINIMUM_CHARACTERS = 100  # of a paragraph; shorter ones are captions and labels
MEDIA = ("file", "image", "media", "category")  # links to them show no text; every wiki knows the English names
LISTED = "*#:;=|!"  # how lines begin that are of a list, a heading or a table, or indented

# What shows none of its content as text: formulas, programs, pictures. Without an end it reaches to that of the page.
SEALED = "ce|chem|code|gallery|graph|hiero|imagemap|mapframe|math|nowiki|poem|pre|score|source|syntaxhighlight|timeline"
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
# What has no text, directly behind a sentence, is a note such as "citation needed", if no small letter goes on behind it.
# Elsewhere it may be a word of the sentence.
NOTE = re.compile(rf"([.!?…。！？؟।][\"'”’»)\]]*){HOLE}+(?= [\"'“‘«(\[]*(.)|$)")
BRACKETS = re.compile(r"(?:^| )\([^()]*\)(?!\w)")  # not those of "f(x)" and "word(s)"
LEFT_OVER = re.compile(rf"{HOLE}|-\{{|\{{\{{|\}}\}}|\[\[|\]\]|\{{\||\|\}}|[<>]")
END = re.compile(r"[.!?…。！？؟।][\"'”’»)\]]*$")


def wiki_documents(path: str, file: BinaryIO) -> Iterator[Document | None]:
    """Yields title and running text of each article; None for a page that is none: a redirect, or of another namespace.

    The paragraphs of an article are lines. `PARAGRAPH` separates them, too, so that no sentence goes over two of them.
    Of a page with several revisions the last one counts. Raises UserError, with the `path`, if the file is not a whole
    dump, has a page of more than `LARGEST_PAGE` bytes, or declares entities.
    """
    dump, parser = _Dump(), expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, CHUNK
    parser.StartElementHandler, parser.EndElementHandler = dump.start, dump.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = dump.content.append, dump.refuse
    while True:
        chunk = file.read(CHUNK)
        dump.size += len(chunk)
        try:
            if dump.size > LARGEST_PAGE:
                raise ValueError(f"it has a page of more than {LARGEST_PAGE:,} bytes")
            parser.Parse(chunk, not chunk)
        except (expat.ExpatError, ValueError) as error:
            reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else error
            place = f", in or behind the page {shown(dump.page['title'])}" if dump.page.get("title") else ""
            raise unreadable(path, f"{reason}{place}", parser.ErrorLineNumber) from error
        yield from dump.found
        dump.found.clear()
        if not chunk:
            return


class _Dump:
    """What is known of a dump while it is read. Each method hears of one thing in it, and raises ValueError for what no dump has."""

    def __init__(self) -> None:
        self.above: list[str] = []  # elements that are open, from the outermost
        self.content: list[str] = []  # of the innermost element
        self.page: dict[str, str] = {}  # what is known of the page, or of the namespace in front of all pages
        self.media = {*MEDIA}
        self.found: list[Document | None] = []  # articles, see `wiki_documents`
        self.size = 0  # bytes since the last revision

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.above.append(name)
        self.content.clear()
        if self.above[0] != "mediawiki":
            raise ValueError(f"it is no dump of a wiki: its outermost element is {shown(name)}, not 'mediawiki'")
        if len(self.above) > MAX_ELEMENTS:
            raise ValueError("its elements are nested too deeply")
        if name == "page":
            self.page.clear()
        elif name == "redirect":
            self.page[name] = ""
        elif name == "namespace":
            self.page["key"] = attributes.get("key", "")

    def end(self, name: str) -> None:
        self.above.pop()
        page, content = self.page, "".join(self.content)
        if name == "namespace" and page.get("key") in MEDIA_KEYS:
            self.media.add(content.strip().lower())
        elif name in KEPT:
            page[name] = content
        elif name == "revision":
            self.size = 0
        elif name == "page":
            article = page.get("ns", "0").strip() == "0" and "redirect" not in page
            text = f"\n{PARAGRAPH}".join(paragraphs(page.get("text", ""), self.media)) if article else ""
            self.found.append(Document("", text, page.get("title", "")) if article else None)
        self.content.clear()

    def refuse(self, *_: object) -> None:
        raise ValueError("it declares a document type, which could hold entities without end; no dump does")


def paragraphs(markup: str, media: Collection[str] = MEDIA) -> list[str]:
    """Returns the paragraphs of running text of a page, each on one line.

    Left out are headings, lists, indented lines, tables, pictures, references, and notes behind a sentence; brackets that
    contain a template or a formula; and every paragraph that is then not whole: something is missing in it, it does not
    begin with a capital letter, a number or a sign, does not end with a sentence, or is shorter than `MINIMUM_CHARACTERS`.
    `media`: the namespaces whose links show no text, in small letters.
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
        return name.replace("'", "&#39;") if name in ("'", "'s") else HOLE
    if kind == "[[":
        target, bar, label = content.partition("|")
        space, colon, _ = target.partition(":")
        if colon and space.strip().lower() in media:
            return ""
        return (label.rpartition("|")[2] if bar else target.lstrip(":")) or HOLE
    if kind in ("sup", "sub"):
        digits = content.strip().translate(RAISED if kind == "sup" else LOWERED)
        return HOLE if re.search(r"[^⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉₊₋]", digits) else digits
    return "\n\n" if kind == "{|" else ""


def _plain(text: str) -> str:
    """Returns a paragraph without the marks inside a line, notes, and brackets in which something is missing."""
    text = EXTERNAL_LINK.sub(lambda link: link[1] or HOLE, text)
    text = QUOTES.sub(lambda quotes: "'" if len(quotes[0]) == 4 else "", WITHOUT_TEXT.sub(HOLE, text))
    text = " ".join(html.unescape(TAG.sub("", text)).split())
    text = NOTE.sub(lambda note: note[0] if (note[2] or "").islower() else note[1], text)
    return BRACKETS.sub(lambda some: some[0] if re.search(r"\w", some[0]) and HOLE not in some[0] else "", text).strip()


def _is_whole(text: str) -> bool:
    first = text.lstrip("\"'“‘«([")[:1]
    begins = len(text) >= MINIMUM_CHARACTERS and not first.islower()
    return begins and bool(END.search(text)) and not LEFT_OVER.search(text)
