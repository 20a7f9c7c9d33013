"""`python -m tools.architectures`: shows docs/architectures.csv, or proves it anew."""

import difflib
import shutil
import sys
import textwrap
from pathlib import Path

import click

from ffkv.base.errors import UserError
from ffkv.base.options import WRITABLE
from ffkv.base.terminal import say

TABLE = Path(__file__).parents[2] / "docs" / "architectures.csv"


@click.command()
@click.argument("model_types", nargs=-1, metavar="[MODEL_TYPE]...")
@click.option(
    "--prove",
    is_flag=True,
    help="Prove a tiny random model of each type now, instead of showing docs/architectures.csv.",
)
@click.option("--output", type=WRITABLE, help="File to write the table to, as CSV.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    show_default="one per core",
    help="Number of processes that prove at the same time.",
)
def models(model_types: tuple[str, ...], prove: bool, output: Path | None, processes: int | None) -> None:
    """Show which model types ffkv can read: all types, or the named ones.

    A MODEL_TYPE is the value of `model_type` in a checkpoint's config.json.
    """
    from ffkv.base.files.tables import read, write
    from ffkv.base.process.progress import progress
    from ffkv.base.process.runtime import allowed_cores, configure
    from tools.architectures import coverage

    if prove:
        configure(1)  # before torch is there
        from tools.architectures.tiny import types

        known = types()
        _check(model_types, known)
        wanted, done = [name for name in known if name in model_types] if model_types else known, []
        with progress(len(wanted), "types", "proving") as bar:
            for row in coverage.rows(wanted, processes or allowed_cores()):
                done.append(row)
                bar.update()
        rows = coverage.table(done)
    else:
        rows = read(TABLE, texts=coverage.COLUMNS)
        _check(model_types, list(rows["model_type"]))
        rows = rows[rows["model_type"].isin(model_types)] if model_types else rows
    if output is not None:
        write(rows, output)
    say(_aligned(rows.to_dict("records")))


def _check(model_types: tuple[str, ...], known: list[str]) -> None:
    for name in model_types:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"Did you mean {', '.join(close)}?" if close else "`python -m tools.architectures` lists all."
            raise UserError(f"{name} is not a model type that transformers has a causal language model of. {hint}")


def _aligned(rows: list[dict[str, str]]) -> str:
    """Returns the table as text: proven types with kind and error, the others with the reason."""
    lines = [("model type", "proven", "error", "kind of feed-forward layer, or why not")]
    lines += [
        (row["model_type"], row["proven"], row["largest_error"], "; ".join(filter(None, (row["kind"], row["reason"]))))
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    indent = " " * sum(width + 2 for width in widths)
    wrap = textwrap.TextWrapper(max(line_width(), len(indent) + 20), subsequent_indent=indent, break_on_hyphens=False)
    texts = ["".join(f"{cell:{width + 2}}" for cell, width in zip(line, widths)) + line[3] for line in lines]
    proven = sum(row["proven"] == "yes" for row in rows)
    return "\n".join(
        [*map(wrap.fill, texts), f"{proven} of {len(rows)} model types proven, on a tiny random checkpoint of each"]
    )


def line_width() -> int:
    """Width of the terminal; unlimited in a file, where each row is one line."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


if __name__ == "__main__":
    try:
        models()
    except UserError as error:
        say(str(error), error=True)
        sys.exit(2)
