"""The embedded corpus: which documents there are, and what of them is kept."""

import ast
import errno
import os
import sysconfig
from itertools import islice, pairwise
from pathlib import Path

import pytest

from ffkv.base.errors import UserError
from ffkv_embedded.python_docs import DOCUMENTED, documents, prose, read_docstrings, read_topics


@pytest.fixture(scope="module")
def corpus():
    return list(documents())


@pytest.fixture(scope="module")
def paragraphs(corpus):
    return [paragraph for document in corpus for paragraph in document.text.split("\n\n")]


@pytest.mark.slow
def test_the_library_gives_hundreds_of_documents_and_more_than_a_megabyte(corpus):
    assert 300 < len(corpus) < 1000
    assert 1_000_000 < sum(len(document.text) for document in corpus) < 4_000_000


def test_names_are_unique_and_say_what_a_document_is(corpus):
    names = [document.name for document in corpus]
    assert len(set(names)) == len(names)
    assert {"topic import", "module argparse.py", "module json/encoder.py"} <= set(names)
    assert not [name for name in names if "site-packages" in name or "/test/" in name]


def test_the_same_python_gives_the_same_documents(corpus):
    assert list(islice(documents(), 100)) == corpus[:100]


def test_documents_are_in_the_order_of_their_names(corpus):
    modules = [document.name.removeprefix("module ").split("/") for document in corpus if document.name[0] == "m"]
    assert all(before < after for before, after in pairwise(modules))


def test_no_paragraph_stands_twice(paragraphs):
    assert len(set(paragraphs)) == len(paragraphs)


@pytest.mark.parametrize("left_over", ["\n>>>", ">>> import", "::=", "====", "\n.. ", ":class:`"])
def test_no_markup_or_example_is_left(corpus, left_over):
    assert not [document.name for document in corpus if left_over in document.text]


def test_every_paragraph_ends_a_sentence(paragraphs):
    assert all(paragraph.rstrip("\"')")[-1] in ".?!" for paragraph in paragraphs)


PROSE = [
    ("Return the name\nof the file.", ["Return the name of the file."]),
    ("One thing is here.\n\nAnother one is there.", ["One thing is here.", "Another one is there."]),
    ("Two words.", []),
    ("It has no end", []),
    ("It is easy. For example:", ["It is easy."]),
    ("Add two numbers.\n\n>>> add(1, 2)\n3\n\nIt may overflow.", ["Add two numbers.", "It may overflow."]),
    ("Add two numbers.\n>>> add(1, 2)\n3", ["Add two numbers."]),
    ("The Title\n*********\n\nThis is the text.", ["This is the text."]),
    ("The Title\n---------\nThis is the text.", ["This is the text."]),
    ("Use :class:`Thread` or ``run()`` as *you* want.", ["Use Thread or run() as you want."]),
    ("It takes *args and **kwargs as they come.", ["It takes *args and **kwargs as they come."]),
    ("It multiplies 2*3*4 and the rest of them.", ["It multiplies 2*3*4 and the rest of them."]),
    ("It is new.\n\n.. versionadded:: 3.2\n\n.. note::", ["It is new."]),
    ("It reads a file.\n:param name: where the file is.\n", ["It reads a file."]),
    ("- The first of the items.\n- The second of them.", ["The first of the items.", "The second of them."]),
    ("1. The first of the items.\n(b) The second of them.", ["The first of the items.", "The second of them."]),
    ("x = f(a_b, c[0]) + d.e  # that.", []),
    ("There are two.\n\n+-----+\n| One of the two. |\n+-----+", ["There are two."]),
    ('if_stmt ::= "if" assignment_expression ":" suite.', []),
    ('Is it "x"?  (Yes, it is!)', ['Is it "x"? (Yes, it is!)']),
    ("", []),
]


def test_prose(subtests):
    for raw, kept in PROSE:
        with subtests.test(raw=raw, kept=kept):
            assert prose(raw) == kept


def test_docstrings_come_in_the_order_of_the_source_and_nothing_is_run(tmp_path):
    source = tmp_path / "module.py"
    source.write_text(
        '"""First."""\nraise SystemExit\nclass A:\n  """Second."""\n  async def f():\n    """Third."""\n'
        'def g():\n  """Fourth."""\ndef h(): pass\n'
    )
    assert read_docstrings(source) == ["First.", "Second.", "Third.", "Fourth."]


@pytest.mark.parametrize("content", [b"def (:", b"\x00", b"x = '\xff'"])
def test_what_python_cannot_parse_has_no_docstrings(tmp_path, content):
    source = tmp_path / "template.py"
    source.write_bytes(content)
    assert read_docstrings(source) == []


def test_topics_are_read_as_a_literal(tmp_path):
    source = tmp_path / "topics.py"
    source.write_text("# comment\ntopics = {'if': 'The \"if\" '\n 'statement.'}\n")
    assert read_topics(source) == {"if": 'The "if" statement.'}


def test_a_python_without_sources_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match=r"contains no Python sources.*set corpus\.dataset"):
        list(documents())


def test_a_folder_of_the_library_that_cannot_be_listed_is_not_left_out(tmp_path, monkeypatch):
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a.py").write_text('"""Text."""')
    original = os.scandir

    def fail(path):
        if Path(path).name == "json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return original(path)

    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Input/output error"):
        list(documents())


def test_docstrings_are_found_wherever_a_definition_can_be():
    """Beside a walk through every node, on modules with definitions inside of all kinds of statements."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("argparse.py", "inspect.py", "typing.py", "asyncio/base_events.py", "ctypes/__init__.py", "ssl.py"):
        nodes = [node for node in ast.walk(ast.parse((library / name).read_bytes())) if isinstance(node, DOCUMENTED)]
        nodes.sort(key=lambda node: getattr(node, "lineno", 0))
        assert read_docstrings(library / name) == [text for node in nodes if (text := ast.get_docstring(node))]


def test_a_definition_inside_of_any_statement_is_found(tmp_path):
    inside = "def f():\n            'found'"
    blocks = [
        f"if x:\n    pass\nelse:\n    if y:\n        {inside}",
        f"try:\n    pass\nexcept E:\n    if y:\n        {inside}\nfinally:\n    if y:\n        {inside}",
        f"match x:\n    case 1:\n        {inside}",
        f"for x in y:\n    with z:\n        {inside}",
    ]
    (tmp_path / "a.py").write_text("\n".join(blocks))
    assert read_docstrings(tmp_path / "a.py") == ["found"] * 5
