"""The house does not grow. A function is one thought: at most 60 lines, and at most 8 arguments unless a user gives them by their
names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffkv

SOURCE = Path(ffkv.__path__[0]).parent
TOTAL = 48_692  # lines of Python in src: what is added, something else gives up
LINES, ARGUMENTS = 60, 8  # of a function, from `def` to its end
# Functions whose form others decide.
EXCEPTIONS = {
    "ffkv/activations/scan_kernel.py": {
        "kernel",
        "store_packed",
    },  # a kernel gets its arrays one by one, and calls little
    "ffkv/model/effects/gradient.py": {"_attention"},  # it has the arguments of torch's function
}


def test_the_source_does_not_grow():
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")) <= TOTAL


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def is_too_large(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = function.args
    arguments = [
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg not in ("self", "cls")
    ]
    decorators = {ast.unparse(each).partition("(")[0] for each in function.decorator_list}
    named = function.name in ffkv.__all__ or "click.command" in decorators
    return function.end_lineno - function.lineno + 1 > LINES or (len(arguments) > ARGUMENTS and not named)


def test_functions_are_short_and_have_few_arguments():
    found = {path: {each.name for each in functions(path) if is_too_large(each)} for path in SOURCE.rglob("*.py")}
    assert {path.relative_to(SOURCE).as_posix(): names for path, names in found.items() if names} == EXCEPTIONS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(a, b, c, d, e, /, f, *, g, h): ...", False),
        ("def f(a, b, c, d, e, /, f, *, g, h, i): ...", True),
        ("def f(self, a, b, c, d, e, f, g, h): ...", False),
        ("@click.command()\ndef f(a, b, c, d, e, f, g, h, i): ...", False),
        ("def trace(a, b, c, d, e, f, g, h, i): ...", False),
        ("def trace(a):\n" + "    a\n" * 59, False),
        ("def trace(a):\n" + "    a\n" * 60, True),
    ],
)
def test_the_limits_are_those(tmp_path, text, expected):
    (tmp_path / "a.py").write_text(text)
    (function,) = functions(tmp_path / "a.py")
    assert is_too_large(function) is expected
