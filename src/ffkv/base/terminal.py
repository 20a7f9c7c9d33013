"""Text for a terminal or a log. What strangers wrote (checkpoints, corpora, file names) can send it no command."""

import sys

import click

KEPT = "\n\t"
SHORT_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def spell(character: str) -> str:
    """Spells a character as an escape that people know, such as `\\x1b` or `\\u202e`."""
    code = ord(character)
    spelled = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return SHORT_ESCAPES.get(character, spelled)


def plain(text: str) -> str:
    """Spells out every character of a text that a terminal would obey or not show. Line ends and tabs stay.

    These are controls, marks of direction, blanks other than the plain one, and bytes that are not text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in KEPT or one.isprintable() else spell(one) for one in text)


def say(text: object, error: bool = False, name: bool = True) -> None:
    """Prints a text, as `plain` has it; an error to standard error, behind the name of the program unless `name` is
    False.
    """
    prefix = click.style("ffkv: ", fg="red", bold=True, reset=True) if error and name else ""
    click.echo(prefix + plain(str(text)), err=error)


def announce(text: str) -> None:
    """Tells a person at a terminal, on standard error, what will take a while. Nothing else gets it."""
    if sys.stderr.isatty():
        say(f"{text} ...", error=True, name=False)


def in_bytes(size: float) -> str:
    """Returns a size for a person: 1.2 GB."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    unit, name = next((unit for unit in units if size >= unit[0]), units[-1])
    return f"{size / unit:.3g} {name}"
