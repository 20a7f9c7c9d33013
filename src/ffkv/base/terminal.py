"""Text for a terminal, a log or a spreadsheet. What strangers wrote (checkpoints, corpora, file names) can send it no command."""

import sys

import click

KEPT = "\n\t"
SHORT_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}

# A text that begins so is a formula. Spreadsheets for East Asia take the wide signs as well.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


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
    """Prints a text, as `plain` has it; an error to standard error, behind the name of the program unless `name` is False."""
    prefix = click.style("ffkv: ", fg="red", bold=True, reset=True) if error and name else ""
    click.echo(prefix + plain(str(text)), err=error)


def emit(text: str) -> None:
    """Prints what a program reads, such as JSON or CSV: in UTF-8, as it is. A terminal gets it as `plain` has it."""
    if sys.stdout.isatty():
        say(text)
    else:
        click.echo(text.encode(errors="replace"))


def announce(text: str) -> None:
    """Tells a person at a terminal, on standard error, what will take a while. Nothing else gets it."""
    if sys.stderr.isatty():
        say(f"{text} ...", error=True, name=False)


def in_bytes(size: float) -> str:
    """Returns a size for a person: 1.2 GB."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    unit, name = next((unit for unit in units if size >= unit[0]), units[-1])
    return f"{size / unit:.3g} {name}"


def safe_text(text: str) -> str:
    """Returns a text for a CSV file; behind an apostrophe if a spreadsheet would take it for a formula and run it."""
    return f"'{text}" if _is_formula(text) else text


def read_safe_text(text: str) -> str:
    """Returns the text that `safe_text` was given."""
    return text[1:] if text.startswith("'") and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    """Tells whether a text is a formula, also behind blanks, line ends, and the apostrophes in front of one."""
    return text.lstrip(" \n'").startswith(FORMULA)
