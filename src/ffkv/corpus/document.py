"""The documents that every source of a corpus consists of."""

from typing import NamedTuple


class Document(NamedTuple):
    """A text with a name that no other one has. The text decides which split the document belongs to."""

    name: str  # where the document comes from
    text: str  # its text, as in the source
    title: str = ""  # what its source calls it; "" if it has no name there
