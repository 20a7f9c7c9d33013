"""Dumps of a wiki: which pages are documents, what stays of each mark, which paragraphs are left out, and what is refused."""

import bz2
import gzip
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import wiki_markup
from ffkv.corpus.sentences import split_sentences
from ffkv.corpus.sources import read_documents
from ffkv.corpus.wiki_markup import MAX_DEPTH, MINIMUM_CHARACTERS, paragraphs

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
    empty, last = (f"{path}:3", "", "Empty"), (f"{path}:4", TEXT.format("é"), "Zwei é")
    assert read(path) == [(f"{path}:0", one, "One"), empty, last]


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
    monkeypatch.setattr(wiki_markup, "CHUNK", 1)
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
    monkeypatch.setattr(wiki_markup, "LARGEST_PAGE", 200_000)
    small = [page(str(number), "x" * 1000) for number in range(500)]
    assert len(read(file("a.xml", dump(*small)))) == 500
    for content in (page("A", "x" * 300_000), "<a b='" + "x" * 300_000, "<!--" + "x" * 300_000, "<a/>" * 100_000):
        with pytest.raises(UserError, match="it has a page of more than 200,000 bytes"):
            read(file("a.xml", dump(content)))


def test_columns_and_chats_are_of_other_files(file):
    with pytest.raises(UserError, match=re.escape("corpus.where chooses rows by their columns, and a dump of a wiki")):
        read(file("a.xml", dump()), where={"ns": 0})


# A whole sentence behind the piece that a case is about, so that the paragraph is long enough.
REST = "The rest of this paragraph is one more sentence, and it is long enough that the paragraph counts as text."

SHOWN = {
    "'''Albedo''' is ''one'' word.": "Albedo is one word.",
    "'''''Both''''' are.": "Both are.",
    "The '''dog'''s'' tail.": "The dogs tail.",
    "A ''cat''{{'s}} tail.": "A cat's tail.",
    "A [[link]] and [[Other page|its label]].": "A link and its label.",
    "A [[:Category:Birds|colon]].": "A colon.",
    "A [[link]]s end.": "A links end.",
    "It has[[File:A.jpg|thumb|A [[bird]] {{x}}.]] no picture.": "It has no picture.",
    "A [http://example.org/a?b label] here.": "A label here.",
    "A word<ref>A {{cite|a=[[b]]}} note.</ref> and<ref name=\"a/b\" /> more<!-- hidden {{ -->.": "A word and more.",
    "A fact.{{citation needed|date=May 2012}} \"It is.\"{{sfn|Smith|2004}}{{why}} More.{{cn}}": 'A fact. "It is." More.',
    "{{Use dmy dates}}{{Infobox\n| a = {{nested|{{twice}}}}\n| b = [[c]]\n}}\n'''Bold''' begins.": "Bold begins.",
    "A function f(x) of printf() and word(s) (see {{x}}).": "A function f(x) of printf() and word(s).",
    "Aristotle ({{IPAc-en|æ}}; {{lang|grc|Ἀ}}, 384 BC) wrote.": "Aristotle wrote.",
    "A word (<!-- empty -->; ) and (a (b {{x}}) c).": "A word and (a (b) c).".replace(" (b)", ""),
    "H<sub>2</sub>O, 10<sup>−3</sup> and Na<sup>+</sup>.": "H₂O, 10⁻³ and Na⁺.",
    "Five&nbsp;km &ndash; or <small>six</small> &amp; more.__NOTOC__": "Five km – or six & more.",
    "A line that\ngoes on.": "A line that goes on.",
}  # fmt: skip


def test_what_marks_show(subtests):
    for markup in SHOWN:
        with subtests.test(markup=markup):
            assert paragraphs(f"{markup} {REST}") == [f"{SHOWN[markup]} {REST}"]


LEFT_OUT = {
    "a template as a word": "It is {{convert|5|km}} long.",
    "a template before a word": "{{As of|2010}}, it is long.",
    "a template in a word": "A {{nowrap|long}}-haired cat and a B{{music|flat}}₃.",
    "a template behind a number": "It weighs 5{{e|24}} kg.",
    "a template behind letters": "It is of the XIX{{e}} century.",
    "a template behind an apostrophe": "It is à plus d'{{unité|3|km}} du centre.",
    "a template in quotation marks": 'The word "{{lang|fr|bonjour}}" is French.',
    "a template behind a comma": "He won in 1990,{{formatnum:1992}} and 1994.",
    "a template behind a colon": "It was:{{formatnum:18}} degrees.",
    "a template behind an abbreviation": "It has approx.{{formatnum:1200}} inhabitants.",
    "a template before a full stop": "It lives in {{lang|fr|Paris}}.",
    "a template glued to the first word": "{{lang|ja|東京}}は日本の首都です。",
    "a template in the brackets of a function": "The value f({{mvar|x}}) is large.",
    "a word in two brackets": "The value ({{mvar|x}})s is large.",
    "a formula behind letters": "It is of the form K<sub>a</sub> then.",
    "a formula of chemistry": "It is <ce>H2O + {x}</ce> then.",
    "a mark with a sign": "It is {{'-}} then.",
    "a link whose label is empty": "It is [[a link|]] then.",
    "words of several countries": "It is -{zh-cn:one;zh-tw:two}- then.",
    "a formula": "The vector <math>{a}_{{b}}</math> is long.",
    "a power without a sign": "It is 2<sup>n</sup> long.",
    "a program": "Write <code>x = [[1]]</code> there.",
    "an address": "See http://example.org/a and others.",
    "a link without a label": "See [http://example.org/a] and others.",
    "a line break": "One<br />two.",
    "a template without an end": "A {{convert|5 word.",
    "a link without an end": "A [[link word.",
    "a reference without an end": "A word.<ref>A note. More.",
    "an end without a beginning": "A word}} is here.",
    "too deep": "A " + "[[a|" * (MAX_DEPTH + 1) + "b" + "]]" * (MAX_DEPTH + 1) + ".",
    "a small letter at the beginning": "and so on.",
    "a sign of two": "It is a < b.",
    "a character that does not exist": f"It is &#{'9' * 5000}; here.",
}


def test_a_paragraph_in_which_something_is_missing_is_left_out(subtests):
    for case in LEFT_OUT:
        with subtests.test(case=case):
            whole = f"Another paragraph. {REST}"
            assert paragraphs(f"{whole}\n\n{LEFT_OUT[case]} {REST}") == [whole]


WORDS = st.lists(st.sampled_from(["One", "two,", "three", "d'", '"four"', "5", "it's", "six:"]))
HOLES = st.sampled_from(["{{lang|fr|LOST}}", "{{formatnum:LOST}}", "{{e}}", "<math>LOST</math>", "x<sup>LOST</sup>"])


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), HOLES, st.data())
def test_no_paragraph_lacks_a_word_of_a_sentence(sentences, template, data):
    """A template anywhere inside a sentence, glued to letters and signs or not, takes the paragraph with it."""
    texts = [" ".join(["A sentence", *words, "ends here and not before."]) for words in sentences] + [REST]
    assert paragraphs(" ".join(texts)) == [" ".join(texts)]
    number = data.draw(st.integers(0, len(sentences) - 1))
    place = data.draw(st.integers(0, len(texts[number]) - 1))
    texts[number] = texts[number][:place] + template + texts[number][place:]
    assert paragraphs(" ".join(texts)) == []


def test_lines_that_are_no_running_text_end_a_paragraph_and_are_left_out():
    first, second = f"First. {REST}", f"Second. {REST}"
    kinds = [f"== {REST} ==", f"* {REST}", f"# {REST}", f": {REST}", f"; {REST}", f"{{|\n| {REST}\n|-\n! {REST}\n|}}"]
    kinds += [f"{{{{Main|{REST}}}}}", f"<gallery>\n{REST}\n</gallery>", f"[[Category:Birds|{REST}]]", f"| {REST}"]
    for kind in kinds:
        assert paragraphs(f"{first}\n{kind}\n{second}") == [first, second], kind


def test_a_table_in_a_table_and_a_template_in_a_cell_vanish():
    table = f"{{|\n|\n{{|\n| {REST}\n|}}\n| {{{{a\n|}}}}\n|}}"
    assert paragraphs(f"{table}\nFirst. {REST}") == [f"First. {REST}"]


def test_a_paragraph_ends_with_a_sentence_and_has_a_length():
    just = "x" * (MINIMUM_CHARACTERS - 2)
    assert paragraphs(f"X{just}.") == [f"X{just}."]
    assert paragraphs(f"X{just[1:]}.") == paragraphs(f"X{just}:") == []
    assert paragraphs(f'"X{just}."') == [f'"X{just}."']


def test_names_of_pictures_are_those_of_the_wiki():
    assert paragraphs(f"[[Datei:A.jpg|Bild]]Ein Wort. {REST}", {"datei"}) == [f"Ein Wort. {REST}"]
    assert paragraphs(f"[[Datei:A.jpg|Bild]]Ein Wort. {REST}") == [f"BildEin Wort. {REST}"]


MARKS = "{{ [[ <ref> {{a| [// <!-- <math </ ( {{}} ' &#9 [[a|{{b|"
MANY = ["{|\n", "[http://a ", "a\0 ", "\n", *MARKS.split()]


def test_time_grows_with_the_length_alone(subtests):
    """A quarter of a megabyte of each takes less than half a second; with a square of the length it would take minutes."""
    for piece in MANY:
        with subtests.test(piece=piece):
            started = time.process_time()
            assert paragraphs(piece * (2**18 // len(piece))) == []
            assert time.process_time() - started < 10


@pytest.mark.parametrize("markup", ["[//" + "a" * 2**20, "[[a" * 10**5 + "]]" * 10**5, "(" + "a\0 " * 2**18])
def test_one_long_piece_takes_no_time(markup):
    started = time.process_time()
    assert paragraphs(markup) == []
    assert time.process_time() - started < 10
