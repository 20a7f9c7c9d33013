"""Reads the articles of a dump of a wiki, such as Wikipedia, page by page: XML that MediaWiki writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from ffkv.base.settings.messages import shown
from ffkv.corpus.raw_file import unreadable
from ffkv.corpus.sentences import PARAGRAPH
from ffkv.corpus.wiki_markup import MEDIA, paragraphs

LARGEST_PAGE = 2**24  # bytes of XML; MediaWiki itself refuses texts above 2 MiB
MAX_DEPTH = 100  # elements inside one another; a dump has five
CHUNK = 2**16  # bytes that are read at a time
KEPT = ("title", "ns", "text")  # elements of a page whose content counts
MEDIA_KEYS = ("-2", "6", "14")  # numbers of the namespaces in MEDIA, whose names depend on the language


def wiki_texts(path: str, file: BinaryIO) -> Iterator[str | None]:
    """Yields the running text of each article; None for a page that is none: a redirect, or of another namespace.

    The paragraphs of an article are lines. `PARAGRAPH` separates them, too, so that no sentence goes over two of them.
    Of a page with several revisions the last one counts. Raises UserError, with the `path`, if the file is not a whole
    dump, has a page of more than `LARGEST_PAGE` bytes, or declares entities.
    """
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, CHUNK
    above: list[str] = []  # elements that are open, from the outermost
    content: list[str] = []  # of the innermost element
    page: dict[str, str] = {}  # what is known of the page, or of the namespace in front of all pages
    media = {*MEDIA}
    found: list[str | None] = []
    size = 0  # bytes since the last revision

    def start(name: str, attributes: dict[str, str]) -> None:
        above.append(name)
        content.clear()
        if above[0] != "mediawiki":
            raise ValueError(f"it is no dump of a wiki: its outermost element is {shown(name)}, not 'mediawiki'")
        if len(above) > MAX_DEPTH:
            raise ValueError("its elements are nested too deeply")
        if name == "page":
            page.clear()
        elif name == "redirect":
            page[name] = ""
        elif name == "namespace":
            page["key"] = attributes.get("key", "")

    def end(name: str) -> None:
        nonlocal size
        above.pop()
        if name == "namespace" and page.get("key") in MEDIA_KEYS:
            media.add("".join(content).strip().lower())
        elif name in KEPT:
            page[name] = "".join(content)
        elif name == "revision":
            size = 0
        elif name == "page":
            article = page.get("ns", "0").strip() == "0" and "redirect" not in page
            found.append(f"\n{PARAGRAPH}".join(paragraphs(page.get("text", ""), media)) if article else None)
        content.clear()

    def refuse(*_: object) -> None:
        raise ValueError("it declares a document type, which could hold entities without end; no dump does")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, content.append
    parser.StartDoctypeDeclHandler = refuse
    while True:
        chunk = file.read(CHUNK)
        size += len(chunk)
        try:
            if size > LARGEST_PAGE:
                raise ValueError(f"it has a page of more than {LARGEST_PAGE:,} bytes")
            parser.Parse(chunk, not chunk)
        except (expat.ExpatError, ValueError) as error:
            reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else error
            place = f", in or behind the page {shown(page['title'])}" if page.get("title") else ""
            raise unreadable(path, f"{reason}{place}", parser.ErrorLineNumber) from error
        yield from found
        found.clear()
        if not chunk:
            return
