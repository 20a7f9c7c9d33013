"""What `ffkv export` can be asked for: formats, and options."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from ffkv.base.doors import entries
from ffkv.base.settings import Section

FORMATS = [*entries("formats")]  # their names
PACKAGE = "ffkv-formats"  # of packages/, which may not be installed
# What the help and a refusal add; "" where the package is installed.
ELSEWHERE = (
    ""
    if PACKAGE in {entry.dist.name for entry in entries("formats").values() if entry.dist}
    else f" More are in the package {PACKAGE}. In a clone of ffkv: pip install ./packages/{PACKAGE}"
)


def _name(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ValueError("must be a name of small letters, digits, '.', '_' and '-'")
    return name


class Export(Section):
    """Which memories are exported, on how many sentences, and what they are called in the other tool."""

    memories: list[str] = Field([])
    """Export these memories: L3.17 for one, L3.17-40 for some, L3 for a layer, @starred for a list. Repeat it, or put
    commas between. Without it, all memories are exported."""
    examples: int | None = Field(None, ge=0)
    """Sentences of trigger examples of each sign per memory. Without it, as many as the format wants."""
    sentences: int | None = Field(None, ge=0)
    """Random sentences that all memories share. Without it, as many as the format wants."""
    model_id: Annotated[str | None, AfterValidator(_name)] = None
    """The model's name in the other tool. Without it, the last part of the checkpoint's name."""
    set: Annotated[str, AfterValidator(_name)] = "ffkv"
    """The name of the set of memories in the other tool."""
