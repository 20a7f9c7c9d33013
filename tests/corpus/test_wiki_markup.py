"""The running text of a wiki's page: what stays of each mark, and which paragraphs are left out."""

import time

import pytest

from ffkv.corpus.wiki_markup import MAX_DEPTH, MINIMUM_CHARACTERS, paragraphs

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
    "A fact.{{citation needed|date=May 2012}} And{{sfn|Smith|2004}} more{{cn}}{{why}}.": "A fact. And more.",
    "{{Use dmy dates}}{{Infobox\n| a = {{nested|{{twice}}}}\n| b = [[c]]\n}}'''Bold''' begins.": "Bold begins.",
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


MANY = [
    "{{",
    "[[",
    "<ref>",
    "{|\n",
    "{{a|",
    "[//",
    "[http://a ",
    "<!--",
    "<math",
    "</",
    "(",
    "a\0 ",
    "{{}}",
    "'",
    "&#9",
    "\n",
    "[[a|{{b|",
]


def test_time_grows_with_the_length_alone(subtests):
    """A megabyte of each takes less than two seconds; with a square of the length it would take hours."""
    for piece in MANY:
        with subtests.test(piece=piece):
            started = time.process_time()
            assert paragraphs(piece * (2**20 // len(piece))) == []
            assert time.process_time() - started < 10


@pytest.mark.parametrize("markup", ["[//" + "a" * 2**20, "[[a" * 10**5 + "]]" * 10**5, "(" + "a\0 " * 2**18])
def test_one_long_piece_takes_no_time(markup):
    started = time.process_time()
    assert paragraphs(markup) == []
    assert time.process_time() - started < 10
