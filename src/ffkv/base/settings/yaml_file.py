"""Reads settings files, which are YAML. An error is reported with the name of the file and the line.

Snakemake reads a settings file before it reads the Snakefile, and often answers an error with a traceback. The profiles
therefore call `check_command_line` first, and the Snakefile calls `read_settings`.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from ffkv.base.errors import UserError
from ffkv.base.lookup import OccursTwice, exists, is_file, parse_json, read_bytes
from ffkv.base.terminal import say

PLUGIN = "snakemake-executor-plugin-slurm"
LARGEST = 2**20  # bytes of a file; YAML is read slowly
LONGEST_NUMBER = 1000  # digits of a number; Python reads at most 4,300
DEEPEST = 50  # levels of nesting; settings need three


def read_settings(path: Path | str) -> dict[str, Any]:
    """Reads a settings file into nested dictionaries.

    Raises UserError, which names the file and the line, if it does not exist, is not UTF-8, YAML or a mapping, has a
    key twice, a list under `<<`, or an alias that contains itself.
    """
    try:
        text = read_bytes(path, LARGEST, pipes=True).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"The settings file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise _wrong(path, error.object[: error.start].count(b"\n"), "is not UTF-8 text") from error
    except ValueError as error:
        raise UserError(f"{path} is no settings file: {error}.") from error
    twice = None
    try:
        return _checked(path, parse_json(text))
    except OccursTwice as error:
        text, twice = text.replace("\t", " "), error  # JSON has tabs only between words; YAML can tell the line
    except ValueError:  # not JSON, as nearly always
        pass
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is not None:
            _check_node(path, node)
        if twice:  # YAML did not notice it
            raise UserError(f"{path}: {twice}.")
        return _checked(path, yaml.safe_load(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = " (YAML is indented by spaces, not by tabs)" if "'\\t'" in str(error.problem) else ""
        raise _wrong(path, mark.line if mark else 0, f"{error.problem or error.context}{hint}") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n")
        raise _wrong(path, line, f"the character {chr(error.character)!r} is not allowed in YAML") from error
    except RecursionError:
        raise _wrong(path, 0, "is nested too deeply") from None
    except ValueError as error:  # a date such as 2020-99-99
        raise UserError(f"{path} is not a settings file: {error}.") from error


def _wrong(path: Path | str, line: int, reason: str) -> UserError:
    return UserError(f"{path}, line {line + 1}: {reason}.")


def _checked(path: Path | str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        what = "is empty" if found is None else f"holds {type(found).__name__}, not a mapping"
        raise UserError(f"{path} {what}: a settings file has keys at its top level, and one of them is `runs:`.")
    return found


def _check_node(path: Path | str, top: yaml.Node) -> None:
    """Refuses YAML that no settings file needs. Every node is checked once, even if many aliases refer to it."""
    done: set[int] = set()

    def visit(node: yaml.Node, above: tuple[int, ...]) -> None:
        line = node.start_mark.line
        if id(node) in above:
            raise _wrong(path, line, "holds an alias of itself")
        if id(node) in done:
            return
        if len(above) > DEEPEST:
            raise _wrong(path, line, "is nested too deeply")
        inner = node.value
        if isinstance(node, yaml.ScalarNode):
            inner = []
            if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
                raise _wrong(path, line, f"a number of {len(node.value):,} digits")
        elif isinstance(node, yaml.MappingNode):
            inner = [value for _, value in node.value]
            seen: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line
                if not isinstance(key, yaml.ScalarNode):
                    raise _wrong(path, line, "a key is a word, not a list or a mapping")
                merges = key.tag == "tag:yaml.org,2002:merge"
                if merges and (key.value != "<<" or not isinstance(value, yaml.MappingNode)):
                    # lists of merged mappings grow tenfold per level
                    raise _wrong(path, line, "`<<` takes one mapping here, such as `<<: *name`, not a list or a word")
                if first := seen.get(key.value):
                    raise _wrong(path, line, f"the key {key.value[:80]!r} occurs twice, first in line {first}")
                seen[key.value] = line + 1
        for value in inner:
            visit(value, (*above, id(node)))
        done.add(id(node))

    visit(top, ())


def check_command_line(slurm: bool = False) -> None:
    """Ends the program with a message if a settings file on the command line of Snakemake cannot be read.

    `slurm`: and if that Snakemake is to submit jobs to SLURM, and cannot.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    files = parser.parse_known_args()[0].configfile
    try:
        for file in files or ["config.yaml"]:
            if is_file(file) or (files and not exists(file)):
                read_settings(file)
        if slurm and Path(sys.argv[0]).name == "snakemake" and not find_spec(PLUGIN.replace("-", "_")):
            how = f"`make slurm` in a clone of ffkv, else `pip install {PLUGIN}`"
            raise UserError(f"This profile submits jobs to SLURM, and {PLUGIN} is not installed: {how}.")
    except UserError as error:
        say(error, error=True)
        sys.exit(2)


def typed(value: Any, given: Any) -> Any:
    """Returns settings with the types that a settings file would give them.

    Snakemake passes on the values inside of `--config 'keys={per_layer: 9}'` as text. `given`: what is from there.
    """
    if isinstance(value, dict) and isinstance(given, dict):
        return {key: typed(inner, given[key]) if key in given else inner for key, inner in value.items()}
    if value != given:
        return value
    if isinstance(value, list):
        return [typed(item, item) for item in value]
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:  # text that is not YAML, such as a pattern
        return value
