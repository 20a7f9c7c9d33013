"""Writes docs/api.md from the docstrings of the public names of ffkv: `python docs/write_api.py`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ffkv

PAGE = Path(__file__).with_name("api.md")
HEAD = """# The Python API

`python docs/write_api.py` writes this page from the docstrings. [python.md](python.md) is a tutorial. `ffkv.settings` holds the sections of the
settings, such as `ffkv.settings.Corpus`; [settings.md](settings.md) describes them. Every error that a user can cause is a `UserError`.

The examples need `import ffkv, torch` and the run of `snakemake --configfile configs/tiny.yaml`, which takes two minutes. The tests run them.
"""
SECTIONS = ("Args", "Attributes", "Columns", "Raises", "Returns", "Yields")


def page() -> str:
    """The whole page: an entry per public name, in the order of `ffkv.__all__`."""
    names = [name for name in ffkv.__all__ if not inspect.ismodule(getattr(ffkv, name))]
    return "\n".join([HEAD, *(part for name in names for part in _entry(name, getattr(ffkv, name)))])


def _entry(name: str, thing: Any) -> Iterator[str]:
    """The parts of a function's, a value's or a class's entry; of a class with its public members."""
    yield f"## {name}\n"
    if inspect.isfunction(thing):
        yield _signature(thing, f"ffkv.{name}")
    elif not inspect.isclass(thing):
        yield f"```python\nffkv.{name} = {thing}\n```\n"
    yield _markdown(thing)
    bases = thing.__mro__ if inspect.isclass(thing) else ()
    own = [base for base in reversed(bases) if base.__module__.startswith("ffkv.")]
    for member, value in {member: value for base in own for member, value in vars(base).items()}.items():
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | cached_property)):
            yield f"### {name}.{member}\n"
            if inspect.isfunction(value):
                yield _signature(value, member)
            yield _markdown(value)


def _signature(function: Callable[..., Any], name: str) -> str:
    """The signature as the source has it, so that defaults keep their names."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.args.args = [argument for argument in definition.args.args if argument.arg != "self"]
    for argument in (*definition.args.args, *definition.args.kwonlyargs):
        argument.annotation = _unquoted(argument.annotation)
    text = f"{name}({ast.unparse(definition.args)})"
    if definition.returns:
        text += f" -> {ast.unparse(_unquoted(definition.returns))}"
    return "```python\n{}\n```\n".format("\n".join(textwrap.wrap(text, 110, subsequent_indent="    ")))


def _unquoted(annotation: Any) -> Any:
    """An annotation without the quotes around a name that is defined later."""
    return (
        ast.parse(annotation.value).body[0].value if isinstance(getattr(annotation, "value", None), str) else annotation
    )


def _markdown(thing: Any) -> str:
    """A docstring as Markdown: each section gets a bold title, and its items become a list."""
    text, _, examples = (inspect.getdoc(thing) or "").partition("Examples:\n")
    lines: list[str] = []
    section = item = False
    for line in text.rstrip().splitlines():
        if line.removesuffix(":") in SECTIONS:
            section, item = True, False
            lines += ([] if not lines or not lines[-1] else [""]) + [f"**{line.removesuffix(':')}**", ""]
        elif section and (start := re.match(r"    (\w+(?:, \w+)*): (.*)", line)):
            item = True
            lines.append(f"- `{start[1]}`: {start[2]}")
        else:
            section &= not line or line.startswith("    ")
            lines.append(f"  {line.strip()}" if section and item and line else line.strip() if section else line)
    if examples:
        lines += ["", "```pycon", *textwrap.dedent(examples).splitlines(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
