"""What `ffkv annotate sheets` can be asked for."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from ffkv.base.settings import Names, Section, Seed, Whole


def _people(names: list[str]) -> list[str]:
    """Refuses names that cannot be part of a file's name, and people whom nobody could tell apart."""
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 40:
            raise ValueError(f"must be names of at most 40 letters, digits, - and _; {name[:50]!r} is none")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError("must be different names, so that it can be told what each person says")
    return names


def _file_name(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,49})?", name):
        raise ValueError("must be at most 50 letters, digits, '.', '_' and '-', with a letter or a digit first")
    return name


class Sheets(Section):
    """Blind sheets: how many keys, changes and controls they have, and for whom.

    Examples:
        >>> ffkv_annotation.Sheets(annotators=["anna", "ben"], per_layer=5).shared  # a quarter of the items is for both
        0.25
    """

    annotators: Annotated[Names, Field(min_length=1), AfterValidator(_people)]
    """Names of the people. Repeat it, or put commas between."""
    name: Annotated[str, AfterValidator(_file_name)] = ""
    """What the sheets are called: <name>-keys and <name>-changes; without it, keys and changes."""
    memories: Names = Field([])
    """The keys of these memories, such as L3.17, or @starred for those of a list, in place of random ones. Then there is no sheet of
    changes. Repeat it, or put commas between."""
    per_layer: Whole = Field(10, ge=0)
    """Number of random keys per layer."""
    changes: Whole = Field(100, ge=0)
    """Number of predictions that the last layer changes."""
    controls: float = Field(0.2, ge=0, le=10)
    """Number of controls: random prefixes instead of trigger examples, and random second tokens. A share of the number
    of keys, and of changes."""
    shared: float = Field(0.25, ge=0, le=1)
    """Share of the items that all people judge. The others are dealt out, each to one person."""
    repeated: float = Field(0.05, ge=0, le=1)
    """Share of a person's items that the person judges twice."""
    seed: Seed = 0
    """Seed of all choices."""
