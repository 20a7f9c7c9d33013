"""What every source of a corpus gives."""

from typing import NamedTuple


class Document(NamedTuple):
    """A text, and the name that decides which split it belongs to.

    Attributes:
        name: where the document is from.
        text: its text, as the source has it.
    """

    name: str
    text: str
