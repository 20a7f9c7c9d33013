"""What a tool takes, and how its answer is written: as JSON of a bounded length, which says what is left off."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, create_model

from ffkv.base.errors import UserError
from ffkv.base.settings import LARGEST, Section
from ffkv.base.terminal import plain
from ffkv.run.results.text import NO_BREAK_SPACE

MOST = 8000  # characters of an answer: some 2,000 tokens
LONGEST = 300  # characters of a text; of a longer one its end, where a trigger example has its last token
ITEMS = 30  # of a list
SENTENCES = ("told", "reason", "words")  # of ffkv, which are not cut
TOOLS = tomllib.loads(Path(__file__).with_name("tools.toml").read_text(encoding="utf-8"))
TYPES: dict[str, Any] = {"text": str, "whole": int, "flag": bool, "rows": list[dict[str, str]]}
Answer = tuple[dict[str, Any], dict[str, pd.DataFrame]]  # facts, and tables whose most important rows come first


def arguments(tool: str, base: type[Section]) -> type[Section]:
    """Makes the section of what a tool takes: the settings of `base`, but as `tools.toml` has them, and what it has beside."""
    own = {name: {**about} for name, about in (TOOLS["every_tool"] | TOOLS[tool].get("takes", {})).items()}
    fields: Any = {name: (TYPES[its.pop("type")], Field(**its)) for name, its in own.items()}
    return create_model(tool, __base__=base, **fields)


def write(tool: str, asked: Section, answer: Answer) -> str:
    """Returns an answer as JSON of at most `MOST` characters. Of its first table it has the rows that are asked for.

    Raises UserError if its facts alone are longer.
    """
    about, (said, found) = TOOLS[tool], answer
    given = asked.model_dump(exclude_defaults=True, exclude={"prompts"})  # which may be long
    facts, tables = _short({"asked": given, **said}), dict[str, list[Any]]()
    first, start = next(iter(found), ""), getattr(asked, "start", 0)
    passed = {name: start if name == first else 0 for name in found}  # rows in front of those that are shown
    for name, table in found.items():
        shown = table.reindex(columns=about["columns"][name]) if name in about.get("columns", {}) else table
        count = getattr(asked, "count", LARGEST) if name == first else len(table)
        tables[name] = [_short(row) for row in shown[passed[name] : passed[name] + count].to_dict("records")]
    # Names of the columns, as the first row of each table has them.
    named = {*facts, *(f"{name}.{column}" for name, rows in tables.items() for row in rows[:1] for column in row)}
    untrusted = sorted(name for name in named if name.rpartition(".")[2] in TOOLS["untrusted"])
    while True:
        left = {}
        for name, rows in tables.items():
            total, end = len(found[name]), passed[name] + len(rows)
            if end < total:
                left[name] = f"{total - end} of {total} rows. {about['more'].format(start=end)}"
        whole = {**facts, **tables, "left_off": left, "untrusted": untrusted, "defined": about["defined"]}
        text = json.dumps(whole, ensure_ascii=False, allow_nan=False)
        if len(text) <= MOST:
            return text
        if not any(tables.values()):
            raise UserError(f"The answer is longer than {MOST:,} characters. Ask for less.")
        tables[max(tables, key=lambda name: len(str(tables[name])))].pop()


def _short(value: Any) -> Any:
    """Returns a value as JSON has it: numbers with six digits, None for what is no number, texts without what nobody sees."""
    if isinstance(value, str):
        return plain(f"…{value[-LONGEST:]}" if len(value) > LONGEST else value)
    if isinstance(value, Mapping):
        own = {name: plain(value[name].replace(NO_BREAK_SPACE, " ")) for name in SENTENCES if name in value}
        return {str(name): _short(inner) for name, inner in value.items()} | own
    if isinstance(value, list | tuple | np.ndarray):
        return [*map(_short, value[:ITEMS]), *([f"and {len(value) - ITEMS} more"] if len(value) > ITEMS else [])]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return None if value is pd.NA else value
