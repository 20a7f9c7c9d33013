"""Finds the code that the numbers of a step depend on: its function, every module that this imports in turn, and their data files.

These are modules of ffkv and of the packages behind its doors (`ffkv.base.doors`).
A change of one of these modules repeats the step's rule, and a saved shard from before the change is not continued. A
change of any other module does neither. The imports are read from the source, so that no list has to be kept.
"""

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ffkv.base.doors import CORE, entries, is_own, packages
from ffkv.base.lookup import is_file

# Modules that steps import and that change no number, with the reason.
CHANGES_NO_NUMBER = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# Parts of these that do change numbers: how a table writes and reads them.
CHANGES_NUMBERS = ("base/files/tables.py",)

STEP = "step.py"  # a module with functions of several steps, as is each module that imports what steps are given
GIVEN = "given.py"  # the module of a class whose methods open files for steps

TYPES_ALONE = re.compile(r"^if TYPE_CHECKING:.*\n(?:[ \t]+.*\n|\n)+", re.M)
DATA = re.compile(r"[\"'/]([\w-]+\.(?:toml|txt))[\"']")  # the name of a file beside a module, which the module reads
# A door of what a step reads. Code of the core behind it counts; that of other packages in the runs that need it alone.
OPENED = re.compile(r"\bload(?:_all)?\(\"(readers|corpora)\"")
IMPORT = re.compile(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|[^\n]*)|^[ \t]*import (\w[\w.]*)", re.M)


def code_files(function: str, also: Iterable[str] = ()) -> list[Path]:
    """Returns the source files that the numbers of a step depend on, sorted.

    `function`: such as "ffkv.branches.keys.patterns:find_patterns". `also`: patterns of paths, from the name of a package on, such
    as "ffkv/run/report/*": modules that are imported by name while the step runs, and their data files. Raises ValueError
    if the function is neither of ffkv nor of a package behind a door.
    """
    module, name = function.split(":")
    if not (own := _source(module)):
        raise ValueError(f"{module} is neither of ffkv nor of a package behind a door of ffkv, see ffkv.base.doors")
    by_name: set[Path] = set()
    for pattern in also:
        package, _, rest = pattern.partition("/")
        by_name |= {path for path in _folder(package).glob(rest) if is_file(path)}
    used = _used_by(own, name)
    waiting = [*used, *(each for path in by_name - {own} for each in _imports(path))]
    # `_used_by` has followed what is called in modules of steps.
    found = {own, *by_name, *(path for path in used if _has_steps(path))}
    while waiting:
        path = waiting.pop()
        if path not in found and _changes_numbers(path):
            found.add(path)
            waiting += _imports(path)
    return sorted(found)


@cache
def code_hash(function: str, also: tuple[str, ...] = ()) -> str:
    """Returns the first 16 hexadecimal digits of a SHA-256 hash over the bytes of the files of `code_files`, wherever these lie."""
    # In the order of the bytes: that of the paths changes with the folders that hold the packages.
    return hashlib.sha256(b"".join(sorted(map(_content, code_files(function, also))))).hexdigest()[:16]


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _changes_numbers(path: Path) -> bool:
    if not path.is_relative_to(core := _folder("ffkv")):
        return True
    name = path.relative_to(core).as_posix()
    aside = any(fnmatch(name, each) or name.startswith(f"{each}/") for each in CHANGES_NO_NUMBER)
    return name in CHANGES_NUMBERS or not aside


@cache
def _folder(package: str) -> Path:
    """Returns the folder of a package that can be imported without a dot in its name, such as "ffkv"."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{package} is no package with a folder")
    return Path(next(iter(found.submodule_search_locations)))


@cache
def _source(module: str, beside: Path = Path()) -> Path | None:
    """Returns the file of a module, which the file `beside` may name with dots at its beginning; None if it is of another library."""
    names = module.lstrip(".")
    if dots := len(module) - len(names):
        path = beside.parents[dots - 1].joinpath(*names.split("."))
    else:
        package, *rest = names.split(".")
        if package not in packages():
            return None
        path = _folder(package).joinpath(*rest)
    # A folder of another version, of which caches alone are left, is no package.
    return start if is_file(start := path / "__init__.py") else path.with_suffix(".py")


@cache
def _sources(module: str, names: tuple[str, ...], beside: Path) -> list[Path]:
    """Returns the files that `from module import names` reads, where it stands in the file `beside`; none of other libraries."""
    if (own := _source(module, beside)) is None:
        return []
    above = f"{module.rstrip('.')}." if module.strip(".") else module
    parts = (_source(above + name, beside) for name in names)
    return [part if part and is_file(part) else own for part in parts]


@cache
def _imports(path: Path) -> tuple[Path, ...]:
    """Returns the files that a file imports anywhere but for types alone, its data files, and what of ffkv is behind doors it opens."""
    if path.suffix != ".py":
        return ()
    text = _content(path).decode()
    found = [beside for name in DATA.findall(text) if is_file(beside := path.with_name(name))]
    for door in OPENED.findall(text):
        found += filter(None, [_source(entry.module) for entry in entries(door).values() if is_own(entry, CORE)])
    for module, names, alone in IMPORT.findall(TYPES_ALONE.sub("", text)):
        listed = tuple(re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", names)))
        found += filter(None, [_source(alone)]) if alone else _sources(module, listed, path)
    return tuple(found)


@cache
def _has_steps(path: Path) -> bool:
    return path.name == STEP or any(each.name == GIVEN for each in _imports(path))


@cache
def _statements(path: Path) -> list[ast.stmt]:
    return ast.parse(_content(path), str(path)).body


@cache
def _used_by(own: Path, function: str) -> set[Path]:
    """Returns the files that a function uses, by itself and by what it calls in its own module, the file `own`.

    Of a module of other steps, these are the module and what the called function uses. Of `ffkv.branches.given`, what the methods
    use that are named. `function`: "" for all functions of the module.
    """
    imported: dict[str, tuple[Path, str]] = {}
    defined: dict[str, ast.stmt] = {}
    for statement in _statements(own):
        imported |= _imported_by(statement, own)
        if isinstance(statement, ast.ClassDef) and own.name == GIVEN:
            defined |= _methods(statement)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    used, waiting = set[Path](), [function] if function else [*defined]
    while waiting:
        name = waiting.pop()
        if name in imported:
            source, original = imported[name]
            used.add(source)
            if source.name == GIVEN or _has_steps(source):
                used |= _used_by(source, original)
        for node in ast.walk(defined.pop(name)) if name in defined else ():  # once
            inside = _imported_by(node, own)
            imported |= inside
            waiting += inside
            if isinstance(node, ast.Name | ast.Attribute):
                waiting.append(node.id if isinstance(node, ast.Name) else f".{node.attr}")
    return used


def _imported_by(node: ast.AST, own: Path) -> dict[str, tuple[Path, str]]:
    """Returns the names that a statement of the file `own` imports: their files, and their names there; "" for all of a file."""
    if not isinstance(node, ast.ImportFrom):
        return {}
    module = "." * node.level + (node.module or "")
    sources = _sources(module, tuple(alias.name for alias in node.names), own)
    whole = _source(module, own)
    named = {
        alias.asname or alias.name: (source, alias.name if source == whole else "")
        for alias, source in zip(node.names, sources)
    }
    for source in {source for source, _ in named.values() if source.name == GIVEN}:
        classes = [each for each in _statements(source) if isinstance(each, ast.ClassDef)]
        named |= {method: (source, method) for each in classes for method in _methods(each)}
    return named


def _methods(statement: ast.ClassDef) -> dict[str, ast.stmt]:
    """Returns the methods of a class by their names, with a point before each."""
    return {f".{each.name}": each for each in statement.body if isinstance(each, ast.FunctionDef)}
