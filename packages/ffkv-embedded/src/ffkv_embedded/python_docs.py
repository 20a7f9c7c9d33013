"""The embedded corpus: the English documentation in the sources of every Python. It needs no download.

There are two kinds of documents: the topics of Python's language reference (`pydoc_data.topics`, which `help("if")`
shows), and the docstrings of each module of the standard library, its classes and its functions. The sources are
parsed, but never imported. Only prose is kept, see `prose`.
"""

import ast
import inspect
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, refuse
from ffkv.corpus.document import Document

TOPICS = "pydoc_data/topics.py"
# Folders of the library that are left out: packages of other people, tests, demonstrations, tables.
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

# A doctest with its output, or a table, up to the end of the paragraph.
EXAMPLE = re.compile(r"^\s*(?:>>>|\.\.\.\s|\||\+--|={3,} ).*", re.M | re.S)
# A heading and the line below it.
UNDERLINED = re.compile(r"^.*\n\s*([=*~^#+-])\1{2,}\s*$", re.M)
# A line such as ".. versionadded:: 3.2", ":param name: what it is" or "@param name: what it is".
DIRECTIVE = re.compile(r"^\s*(?:\.\. |:\w+[^:\n]*:(?!`)|@\w+).*", re.M)
# The marker of a list item: "- ", "* ", "1. ", "(b) ".
ITEM = re.compile(r"^\s*(?:[-*+•]|\(?(?:\d+|[a-z])[.)])\s+", re.M)
# The ":class:" of ":class:`Thread`".
ROLE = re.compile(r":[\w:]+:(?=`)")
# ``literal``, `name`, *emphasis*, **strong**.
MARKUP = re.compile(r"(?<!\w)(``?|\*\*?)(?=\S)(.+?)(?<=\S)\1(?!\w)")
TO_LAST_SENTENCE = re.compile(r".*[.?!][\"')]*(?=\s|$)")
# An English word with its quotes and punctuation, but not "name_with_parts", "call()" or "TypeError".
WORD = re.compile(r"[\"'(]*[A-Za-z][a-z]*(?:['’-][a-z]+)*[\"')]*[,.;:?!]?[\"')]*")
MINIMUM_PIECES = 3  # pieces of a paragraph that blanks separate
MINIMUM_WORDS = 2 / 3  # share of these pieces that are words


def documents(every: int = 1) -> Iterator[Document]:
    """Reads the documents: topics first, then modules, each sorted by name; of `every` so many documents one.

    A paragraph that occurs several times is kept in the first document only. Topics repeat one another, and modules
    copy docstrings; a paragraph in both splits would make the validation loss too low. Raises UserError if this Python
    was installed without the sources of its standard library.
    """
    library = Path(sysconfig.get_path("stdlib"))
    seen: dict[str, str] = {}
    for name, texts in _texts(library, every):
        paragraphs = [paragraph for text in texts for paragraph in prose(text)]
        new = [paragraph for paragraph in dict.fromkeys(paragraphs) if seen.setdefault(paragraph, name) == name]
        if new:
            yield Document(name, "\n\n".join(new))
    if not seen:
        raise UserError(
            f"{library} contains no Python sources, and the embedded corpus is read from them: "
            "use a Python that has them, or set corpus.dataset."
        )


def _texts(library: Path, every: int) -> Iterator[tuple[str, Iterable[str]]]:
    if exists(library / TOPICS):
        for name, text in sorted(read_topics(library / TOPICS).items())[::every]:
            yield f"topic {name}", [text]
    modules: list[Path] = []
    for folder, inside, files in os.walk(library, onerror=refuse):
        inside[:] = [name for name in inside if name not in SKIPPED]  # perhaps large; they are not looked into
        modules += [Path(folder, name).relative_to(library) for name in files if name.endswith(".py")]
    for place in sorted(modules, key=lambda place: place.parts)[::every]:
        yield f"module {place.as_posix()}", read_docstrings(library / place)


def read_topics(path: Path) -> dict[str, str]:
    """Reads the topics from the source of `pydoc_data.topics`: name to text."""
    tree = ast.parse(path.read_bytes())
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


def read_docstrings(path: Path) -> list[str]:
    """Reads the docstrings of a module, in the order of its source; none if this Python cannot parse it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    documented = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    documented.sort(key=lambda node: getattr(node, "lineno", 0))  # a module has no line number
    return [text for node in documented if (text := ast.get_docstring(node))]


def prose(text: str) -> list[str]:
    """Returns the English paragraphs of a piece of documentation. Each one is on one line and ends with a sentence.

    Examples, tables, headings, directives and markup are removed. The text after a paragraph's last full stop is
    removed, too: mostly it announces an example, and it would run into the next paragraph. Signatures, grammars and
    programs are removed because they do not consist of words.
    """
    text = DIRECTIVE.sub("", UNDERLINED.sub("", inspect.cleandoc(text)))
    items = [item for block in re.split(r"\n\s*\n", text) for item in ITEM.split(EXAMPLE.sub("", block))]
    plain = [" ".join(MARKUP.sub(r"\2", ROLE.sub("", item)).split()) for item in items]
    ended = [match.group() for item in plain if (match := TO_LAST_SENTENCE.match(item))]
    found = []
    for paragraph in ended:
        pieces = paragraph.split()
        words = sum(WORD.fullmatch(piece) is not None for piece in pieces)
        if len(pieces) >= MINIMUM_PIECES and words >= MINIMUM_WORDS * len(pieces):
            found.append(paragraph)
    return found
