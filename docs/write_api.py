"""Writes docs/api.md from the docstrings of the public names of ffkv: `python docs/write_api.py`."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ffkv
import ffkv_annotation
import ffkv_comparison
import ffkv_formats
from ffkv.base.files.columns import WILD
from ffkv.base.steps import EVERY_GROUP, Step
from ffkv.branches.registry import BRANCHES
from ffkv.run.ask import sections

PAGE = Path(__file__).with_name("api.md")
HEAD = """# The Python API

`python docs/write_api.py` writes this page from the docstrings. [python.md](python.md) is a tutorial. `ffkv.settings` holds the sections of the
settings, such as `ffkv.settings.Corpus`; [settings.md](settings.md) describes them. Every error that a user can cause is a `UserError`.

The last names are of packages beside the core: `ffkv_annotation`, `ffkv_comparison`, `ffkv_formats`. The examples need `import ffkv, torch`, the
package that they name, and the run of `snakemake --configfile configs/tiny.yaml`, which takes two minutes. The tests run them.

`ffkv.step` takes these steps. [formats.md](formats.md) describes what they return, and the commands of the same names say what they do.

| step | of one | files | settings | returns |
|---|---|---|---|---|
{steps}
"""
SECTIONS = ("Args", "Attributes", "Columns", "Raises", "Returns", "Yields")


def page() -> str:
    """The whole page: an entry per public name, in the order of the stubs."""
    names = [
        (package.__name__, name)
        for package in (ffkv, ffkv_annotation, ffkv_comparison, ffkv_formats)
        for name in package.__all__
        if not inspect.ismodule(getattr(package, name))
    ]
    steps = (_row(f"{branch.name} {name}", step) for branch in BRANCHES.values() for name, step in branch.steps.items())
    return "\n".join(
        [HEAD.format(steps="\n".join(steps)), *(part for package, name in names for part in _entry(package, name))]
    )


def _row(name: str, step: Step) -> str:
    """The row of a step: its arguments and what it returns."""
    parts = dict.fromkeys(part for each in step.writes for part in WILD.findall(each.path))
    files = [each.rstrip(EVERY_GROUP) for each in step.reads]
    columns = ([name], parts, files, sections(step), [each.name for each in step.writes])
    return "| " + " | ".join(", ".join(f"`{word}`" for word in words) for words in columns) + " |"


def _entry(package: str, name: str) -> Iterator[str]:
    """The parts of a function's, a value's or a class's entry; of a class with its public members."""
    thing = getattr(sys.modules[package], name)
    yield f"## {name}\n"
    if inspect.isfunction(thing):
        yield _signature(thing, f"{package}.{name}")
    elif not inspect.isclass(thing):
        yield f"```python\n{package}.{name} = {thing}\n```\n"
    yield _markdown(thing)
    bases = thing.__mro__ if inspect.isclass(thing) else ()
    own = [base for base in reversed(bases) if base.__module__.startswith(("ffkv.", f"{package}."))]
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
    own, arguments = (
        {each.arg for each in ast.walk(definition.args) if isinstance(each, ast.arg)},
        ast.unparse(definition.args),
    )
    # Those of a section, see `ffkv.base.settings.section.documents`.
    options = [each for each in inspect.signature(function).parameters.values() if each.name not in {*own, "self"}]
    if options:
        told = ", ".join(f"{each.name}={each.default!r}" for each in options)
        arguments = arguments.replace("**options: Any", told if definition.args.kwonlyargs else f"*, {told}")
    text = f"{name}({arguments})"
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
