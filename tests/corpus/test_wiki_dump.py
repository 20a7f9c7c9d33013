"""Dumps of a wiki: which pages are documents, and what is refused."""

import bz2
import gzip
import re

import pytest

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import wiki_dump
from ffkv.corpus.sentences import split_sentences
from ffkv.corpus.sources import read_documents

TEXT = (
    "This article has {} as its only sentence, and the sentence is long enough that it counts as running text in D.C."
)
HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="de"><siteinfo><namespaces>'
    '<namespace key="0" /><namespace key="6" case="first-letter">Datei</namespace></namespaces></siteinfo>'
)


def page(title: str, text: str, ns: int = 0, redirect: str = "") -> str:
    return (
        f"<page><title>{title}</title><ns>{ns}</ns><id>1</id>{redirect}<revision><id>2</id><text xml:space='preserve'>"
        f"{text}</text></revision></page>"
    )


def dump(*pages: str) -> bytes:
    return "\n".join([HEAD, *pages, "</mediawiki>"]).encode()


def read(path, **settings):
    return list(read_documents(Corpus(dataset="files", train=[str(path)], validation=["x"], **settings), "train"))


PAGES = [
    page("One", f"[[Datei:A.jpg|Bild]]{TEXT.format('one')}\n\n== Heading ==\n{TEXT.format('two &amp; three')}"),
    page("Old name", "#REDIRECT [[One]]", redirect='<redirect title="One" />'),
    page("Talk:One", TEXT.format("talk"), ns=1),
    page("Empty", "{{stub}}"),
    page("Zwei é", TEXT.format("&lt;!-- hidden --&gt;é")),
]
NAMES = ["a.xml", "a.xml.bz2", "a.xml.gz", "wiki-articles1.xml-p000000010p000030302-short.bz2", "A.XML-p1p2"]


@pytest.mark.parametrize("name", NAMES)
def test_an_article_is_a_document(file, name):
    pack = {"bz2": bz2.compress, "gz": gzip.compress}.get(name.rpartition(".")[2], bytes)
    path = file(name, pack(dump(*PAGES)))
    one = f"{TEXT.format('one')}\n\u2029{TEXT.format('two & three')}"
    assert read(path) == [(f"{path}:0", one), (f"{path}:3", ""), (f"{path}:4", TEXT.format("é"))]


def test_no_sentence_goes_over_two_paragraphs(file):
    """Without the sign between them, "D.C." would not end the first one."""
    text = read(file("a.xml", dump(*PAGES)))[0].text
    first, second = TEXT.format("one"), TEXT.format("two & three")
    assert split_sentences(text, "sentence", False) == [first, second]
    assert split_sentences(text.replace("\u2029", ""), "sentence", False) == [f"{first} {second}"]
    assert split_sentences(text, "line", False) == [first, second]
    assert "".join(split_sentences(text, "sentence", False, "keep")) == text


def test_the_last_revision_counts(file):
    old = f"<revision><text>{TEXT.format('old')}</text></revision>"
    content = dump(PAGES[4].replace("<revision>", f"{old}<revision>", 1))
    assert [document.text for document in read(file("a.xml", content))] == [TEXT.format("é")]


def test_pages_in_pieces_of_any_size_are_the_same(file, monkeypatch):
    path = file("a.xml", dump(*PAGES))
    expected = read(path)
    monkeypatch.setattr(wiki_dump, "CHUNK", 1)
    assert read(path) == expected


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in zip("abcdefghi", "bcdefghij")
)
REFUSED = {
    "no end": (dump(*PAGES)[:-30], "unclosed token, in or behind the page 'Zwei é'"),
    "no end of the root": (dump(*PAGES)[:-12], "no element found, in or behind the page 'Zwei é'"),
    "crossed tags": (dump(page("A", "<b>x"), PAGES[0]), r"\(line 2\): mismatched tag, in or behind the page 'A'"),
    "another root": (b"<rss><page/></rss>", "it is no dump of a wiki: its outermost element is 'rss', not 'mediawiki'"),
    "no XML": (b"one\ntwo\n", r"\(line 1\): syntax error"),
    "nothing": (b"", "no element found"),
    "entities without end": (f"{BOMB}]><mediawiki>&j;</mediawiki>".encode(), "it declares a document type"),
    "an entity of a file": (b'<!DOCTYPE a SYSTEM "/etc/passwd"><mediawiki/>', "it declares a document type"),
    "an unknown entity": (dump(page("A", "&j;")), "undefined entity, in or behind the page 'A'"),
    "elements without end": (HEAD.encode() + b"<a>" * 1000, "its elements are nested too deeply"),
    "a NUL": (dump(page("A", "\0")), "not well-formed"),
    "no UTF-8": (dump(page("A", "x")).replace(b">x<", b">\xff<"), "not well-formed"),
    "UTF-16": (dump().decode().encode("utf-16"), "it is UTF-16 text: convert it to UTF-8"),
}


def test_what_is_no_whole_dump_is_refused_by_name_and_page(subtests, file):
    for case in REFUSED:
        with subtests.test(case=case):
            content, message = REFUSED[case]
            with pytest.raises(UserError, match=rf"a\.xml cannot be read.*{message}") as refused:
                read(file("a.xml", content))
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content, message",
    [
        (bz2.compress(dump(*PAGES))[:-20], "Compressed file ended before"),
        (dump(*PAGES), "Invalid data stream"),
        (bz2.compress(dump(*PAGES)[:-20]), "in or behind the page 'Zwei é'"),
    ],
)
def test_a_damaged_bz2_file_is_refused(file, content, message):
    with pytest.raises(UserError, match=rf"a\.xml\.bz2 cannot be read.*{message}"):
        read(file("a.xml.bz2", content))


def test_a_page_without_end_is_refused(file, monkeypatch):
    monkeypatch.setattr(wiki_dump, "LARGEST_PAGE", 200_000)
    small = [page(str(number), "x" * 1000) for number in range(500)]
    assert len(read(file("a.xml", dump(*small)))) == 500
    for content in (page("A", "x" * 300_000), "<a b='" + "x" * 300_000, "<!--" + "x" * 300_000, "<a/>" * 100_000):
        with pytest.raises(UserError, match="it has a page of more than 200,000 bytes"):
            read(file("a.xml", dump(content)))


def test_columns_and_chats_are_of_other_files(file):
    with pytest.raises(
        UserError, match=re.escape("corpus.where chooses rows by their columns, and a dump of a wiki has none")
    ):
        read(file("a.xml", dump()), where={"ns": 0})
