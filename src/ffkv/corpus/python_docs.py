"""English documentation that every Python carries, read from its sources: a corpus that needs no download.

Two kinds of documents: the topics of Python's language reference (`pydoc_data.topics`, what `help("if")` shows), and
for each module of the standard library the docstrings of the module, its classes and its functions. The sources are
parsed, never imported. Only prose is kept, see `prose`.
"""

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from ffkv.corpus.document import Document
from ffkv.errors import UserError

TOPICS = "pydoc_data/topics.py"
# Folders of the library without documentation of their own: other people's packages, tests, demonstrations, tables.
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "encodings",
    "pydoc_data",
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# A doctest and what it prints, or a table, to the paragraph's end.
EXAMPLE = re.compile(r"^\s*(?:>>>|\.\.\.\s|\||\+--|={3,} ).*", re.M | re.S)
# A heading and the line under it.
UNDERLINED = re.compile(r"^.*\n\s*([=*~^#+-])\1{2,}\s*$", re.M)
# A line such as ".. versionadded:: 3.2", ":param name: what it is" or "@param name: what it is".
DIRECTIVE = re.compile(r"^\s*(?:\.\. |:\w+[^:\n]*:(?!`)|@\w+).*", re.M)
# The marker of a list's item: "- ", "* ", "1. ", "(b) ".
ITEM = re.compile(r"^\s*(?:[-*+•]|\(?(?:\d+|[a-z])[.)])\s+", re.M)
# The ":class:" of ":class:`Thread`".
ROLE = re.compile(r":[\w:]+:(?=`)")
# ``literal``, `name`, *emphasis*, **strong**.
MARKUP = re.compile(r"(?<!\w)(``?|\*\*?)(?=\S)(.+?)(?<=\S)\1(?!\w)")
TO_LAST_SENTENCE = re.compile(r".*[.?!][\"')]*(?=\s|$)")
# An English word with its quotes and punctuation; no "name_with_parts", "call()" or "TypeError".
WORD = re.compile(r"[\"'(]*[A-Za-z][a-z]*(?:['’-][a-z]+)*[\"')]*[,.;:?!]?[\"')]*")
PIECES, WORDS = 3, 2 / 3  # a paragraph has at least so many pieces between blanks, and at least this share are words


def documents() -> Iterator[Document]:
    """The documents, topics first, each kind by name; a paragraph that several contain stands only in the first one.

    (Topics repeat one another, modules copy docstrings. A paragraph in both splits would flatter the model.)

    Raises:
        UserError: this Python came without the sources of its standard library.
    """
    library = Path(sysconfig.get_path("stdlib"))
    seen: dict[str, str] = {}
    for name, texts in _texts(library):
        paragraphs = [paragraph for text in texts for paragraph in prose(text)]
        new = [paragraph for paragraph in dict.fromkeys(paragraphs) if seen.setdefault(paragraph, name) == name]
        if new:
            yield Document(name, "\n\n".join(new))
    if not seen:
        raise UserError(
            f"{library} holds no Python sources, and the embedded corpus is read from them: "
            "use a Python that brings them, or set corpus.dataset."
        )


def _texts(library: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Names and raw texts: of every topic, then of every module."""
    if (library / TOPICS).exists():
        for name, text in sorted(read_topics(library / TOPICS).items()):
            yield f"topic {name}", [text]
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).parts):
        place = path.relative_to(library)
        if SKIPPED.isdisjoint(place.parts):
            yield f"module {place.as_posix()}", read_docstrings(path)


def read_topics(path: Path) -> dict[str, str]:
    """The dictionary of topics that the module at `path` assigns, by name."""
    tree = ast.parse(path.read_bytes())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def read_docstrings(path: Path) -> list[str]:
    """The docstrings of a module, in the order of its source; none where this Python cannot parse it (a template)."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))  # the module itself has no line
    return [text for node in nodes if (text := ast.get_docstring(node))]


def prose(text: str) -> list[str]:
    """The paragraphs of English in a piece of documentation, each on one line, each ending where a sentence ends.

    Examples, tables, headings, directives and markup go. What follows a paragraph's last full stop goes too (mostly it
    announces an example that is gone), so that no sentence runs into the next paragraph. What is left must consist of
    words; signatures, grammars and programs do not.
    """
    text = DIRECTIVE.sub("", UNDERLINED.sub("", inspect.cleandoc(text)))
    items = [item for block in re.split(r"\n\s*\n", text) for item in ITEM.split(EXAMPLE.sub("", block))]
    plain = [" ".join(MARKUP.sub(r"\2", ROLE.sub("", item)).split()) for item in items]
    ended = [match.group() for item in plain if (match := TO_LAST_SENTENCE.match(item))]
    return [paragraph for paragraph in ended if _is_english(paragraph)]


def _is_english(paragraph: str) -> bool:
    pieces = paragraph.split()
    words = sum(WORD.fullmatch(piece) is not None for piece in pieces)
    return len(pieces) >= PIECES and words >= WORDS * len(pieces)
