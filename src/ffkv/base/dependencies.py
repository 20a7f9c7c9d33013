"""Finds the code that the numbers of a step depend on: its function, and every module that this imports in turn.

A change of one of these modules repeats the step's rule, and a saved shard from before the change is not continued. A
change of any other module does neither. The imports are read from the source, so that no list has to be kept.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ffkv.base.lookup import is_dir, is_file

PACKAGE = Path(__file__).parents[1]

# Modules that steps import and that change no number, with the reason. What only they import changes none either.
CHANGES_NO_NUMBER: dict[str, str] = {
    "__init__.py": "It holds the version and the names of the public functions.",
    "base/dependencies.py": "It says which modules numbers depend on.",
    "base/errors.py": "An error ends the step.",
    "base/files": "Numbers are stored and read bit by bit. A new format has a new version, which the readers check.",
    "base/hub": "What is read is a commit, which Snakemake tracks. What was fetched is checked against its hash.",
    "base/options.py": "An option carries a setting or a path, which Snakemake tracks.",
    "base/parts.py": "Shards and layer groups change no number. A test runs the same run with other numbers of them.",
    "base/process": "It shows progress, handles signals, and chooses threads and the device.",
    "activations/steps.py": "It says which settings reach a step. Snakemake tracks their values.",
    "base/settings": "A setting reaches a step by its value, which Snakemake tracks.",
    "base/steps.py": "It says how a step is described.",
    "base/system": "It asks the operating system: disks, memory, signals.",
    "base/terminal.py": "It prints.",
}
# Parts of these that do change numbers: how a table writes and reads them.
CHANGES_NUMBERS = ("base/files/tables.py",)

STEP = "step.py"  # a module with functions of several steps

TYPES_ALONE = re.compile(r"^if TYPE_CHECKING:.*\n(?:[ \t]+.*\n|\n)+", re.M)
IMPORT = re.compile(r"^[ \t]*from (ffkv[\w.]*) import (\([^)]*\)|[^\n]*)|^[ \t]*import (ffkv[\w.]*)", re.M)


def code_files(function: str, also: Iterable[str] = ()) -> list[Path]:
    """Returns the source files that the numbers of a step depend on, sorted.

    `function`: such as "ffkv.branches.keys.step:find_patterns". `also`: folders below the package whose modules are
    imported by name while the step runs.
    """
    module, name = function.split(":")
    by_name = [path for folder in also for path in (PACKAGE / folder).rglob("*") if is_file(path)]
    used, own = _used_by(module, name), _source(module)
    found = {own, *(path for path in by_name if "__pycache__" not in path.parts)}
    waiting = [*used, *(each for path in found - {own} for each in _imports(path))]
    found |= {path for path in used if path.name == STEP}  # `_used_by` has followed what is called there
    while waiting:
        path = waiting.pop()
        if path not in found and _changes_numbers(path):
            found.add(path)
            waiting += _imports(path)
    return sorted(found)


@cache
def code_hash(function: str, also: tuple[str, ...] = ()) -> str:
    """Returns the first 16 hexadecimal digits of a SHA-256 hash over the bytes of the files of `code_files`."""
    digest = hashlib.sha256()
    for path in code_files(function, also):
        digest.update(_content(path))
    return digest.hexdigest()[:16]


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _changes_numbers(path: Path) -> bool:
    """Whether numbers may depend on a file of the package."""
    name = path.relative_to(PACKAGE).as_posix()
    aside = any(name == each or name.startswith(f"{each}/") for each in CHANGES_NO_NUMBER)
    return name in CHANGES_NUMBERS or not aside


def _source(module: str) -> Path:
    """Returns the file of a module: "ffkv.base" is base/__init__.py."""
    return _file(PACKAGE, module)


@cache
def _file(package: Path, module: str) -> Path:
    path = package.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if is_dir(path) else path.with_suffix(".py")


def _sources(module: str, names: Iterable[str]) -> list[Path]:
    """Returns the files that `from module import names` reads."""
    return [_file_of(PACKAGE, module, name) for name in names]


@cache
def _file_of(package: Path, module: str, name: str) -> Path:
    path = _file(package, f"{module}.{name}")
    return path if is_file(path) else _file(package, module)


@cache
def _imports(path: Path) -> tuple[Path, ...]:
    """Returns the files of ffkv that a file imports, anywhere in it, but not for types alone."""
    if path.suffix != ".py":
        return ()
    found: list[Path] = []
    for module, names, alone in IMPORT.findall(TYPES_ALONE.sub("", _content(path).decode())):
        listed = re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", names))
        found += [_source(alone)] if alone else _sources(module, listed)
    return tuple(found)


@cache
def _statements(path: Path) -> list[ast.stmt]:
    return ast.parse(_content(path)).body


def _used_by(module: str, function: str) -> set[Path]:
    """Returns the files of ffkv that a function uses, by itself and by what it calls in its own module.

    Of a module of other steps, these are the module and what the called function uses.
    """
    imported: dict[str, tuple[Path, str, str]] = {}
    defined: dict[str, ast.stmt] = {}
    for statement in _statements(_source(module)):
        imported |= _imported_by(statement)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    used, waiting, seen = set(), [function], set()
    while waiting:
        name = waiting.pop()
        if name in imported:
            source, of_module, original = imported[name]
            used |= {source, *(_used_by(of_module, original) if source.name == STEP else ())}
        if name in defined and name not in seen:
            seen.add(name)
            for node in ast.walk(defined[name]):
                waiting += [node.id] if isinstance(node, ast.Name) else []
                imported |= (inside := _imported_by(node))
                waiting += inside
    return used


def _imported_by(node: ast.AST) -> dict[str, tuple[Path, str, str]]:
    """Returns the names that a statement imports from ffkv: the file and the module that each comes from, and its name there."""
    if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("ffkv"):
        return {}
    module, names = str(node.module), [alias.name for alias in node.names]
    found = zip(node.names, _sources(module, names), strict=True)
    return {alias.asname or alias.name: (source, module, alias.name) for alias, source in found}
