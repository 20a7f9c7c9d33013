"""Settings files as YAML: what is wrong with one is said with its name and line.

Snakemake reads the file before the Snakefile and says less, or nothing but a traceback. `profiles/` therefore call
`check_command_line`, and the Snakefile calls `read_settings`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from ffkv.errors import UserError

LONGEST_NUMBER = 1000  # digits; Python reads no more than 4,300
DEEPEST = 50  # sections inside each other; settings have three


def read_settings(path: Path | str) -> dict[str, Any]:
    """What stands in a settings file, as nested dictionaries.

    Raises:
        UserError: no such file, no UTF-8, no YAML, no mapping, a key twice, a list under `<<`, an alias inside of what it stands for; names
            the file and the line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise _wrong(path, error.object[: error.start].count(b"\n"), "is no UTF-8 text") from error
    twice: list[str] = []
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, twice))
        if not twice:
            return _checked(path, found)
        text = text.replace("\t", " ")  # which JSON has only between words; YAML, which knows lines, refuses tabs
    except (ValueError, RecursionError):  # no JSON, as nearly always
        twice = []
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is not None:
            _check_node(path, node)
        if twice:  # and YAML did not see it
            raise UserError(f"{path}: the key {twice[0][:80]!r} stands here twice.")
        return _checked(path, yaml.safe_load(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = " (YAML is indented by blanks, not by tabs)" if "'\\t'" in str(error.problem) else ""
        raise _wrong(path, mark.line if mark else 0, f"{error.problem or error.context}{hint}") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n")
        raise _wrong(path, line, f"the character {chr(error.character)!r} may not stand in YAML") from error
    except RecursionError:
        raise _wrong(path, 0, "is nested too deeply") from None
    except ValueError as error:  # a date such as 2020-99-99
        raise UserError(f"{path} is no settings file: {error}.") from error


def _wrong(path: Path | str, line: int, reason: str) -> UserError:
    return UserError(f"{path}, line {line + 1}: {reason}.")


def _unique(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    """An object of JSON; the keys that it has twice are put on a list."""
    twice += [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]
    return dict(pairs)


def _checked(path: Path | str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        what = "is empty" if found is None else f"holds {type(found).__name__}, not a mapping"
        raise UserError(f"{path} {what}: a settings file has keys at its top level, `runs:` among them.")
    return found


def _check_node(path: Path | str, top: yaml.Node) -> None:
    """Refuses what YAML allows and no settings file means. Every node is seen once, however many aliases it has."""
    done: set[int] = set()

    def visit(node: yaml.Node, above: tuple[int, ...]) -> None:
        line = node.start_mark.line
        if id(node) in above:
            raise _wrong(path, line, "holds an alias of itself")
        if id(node) in done:
            return
        if len(above) > DEEPEST:
            raise _wrong(path, line, "is nested too deeply")
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
                raise _wrong(path, line, f"a number of {len(node.value):,} digits")
        elif isinstance(node, yaml.MappingNode):
            _check_keys(path, node)
            for _, value in node.value:
                visit(value, (*above, id(node)))
        else:
            for value in node.value:
                visit(value, (*above, id(node)))
        done.add(id(node))

    visit(top, ())


def _check_keys(path: Path | str, node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong(path, line, "a key is a word, not a list or a mapping")
        merges = key.tag == "tag:yaml.org,2002:merge"
        if merges and (key.value != "<<" or not isinstance(value, yaml.MappingNode)):
            # lists of mappings that are merged from lists grow tenfold a level
            raise _wrong(path, line, "`<<` takes one mapping here, such as `<<: *name`, not a list or a word")
        if key.value in seen:
            raise _wrong(
                path, line, f"the key {key.value[:80]!r} stands here twice, first in line {seen[key.value] + 1}"
            )
        seen[key.value] = line


def check_command_line() -> None:
    """Ends the program with a message if a settings file that Snakemake's command line names cannot be read."""
    files, named = [], False
    for argument in sys.argv[1:]:
        flag, _, value = argument.partition("=")
        if argument.startswith("-"):
            named = flag in ("--configfile", "--configfiles")
            files += [value] if named and value else []
        elif named:
            files.append(argument)
    for file in files or ["config.yaml"]:
        if Path(file).is_file():
            try:
                read_settings(file)
            except UserError as error:
                print(f"ffkv: {error}", file=sys.stderr)
                sys.exit(2)
