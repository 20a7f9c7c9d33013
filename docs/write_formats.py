"""Writes the lists of datasets and columns in docs/formats.md from what describes the files in the code: `python docs/write_formats.py`."""

from pathlib import Path

from ffkv.base.files.columns import WILD, Column, Table
from ffkv.base.files.datasets import datasets_of

PAGE = Path(__file__).with_name("formats.md")
DATASETS = "<!-- datasets: written by `python docs/write_formats.py` -->", "<!-- end of datasets -->"
TABLES = "<!-- columns: written by `python docs/write_formats.py` -->", "<!-- end of columns -->"


def described_files() -> dict[str, type]:
    """Returns the dataclass that describes each HDF5 file of a run, by the file's name."""
    from ffkv.activations.prefix_file import SampledPrefixes
    from ffkv.activations.resume import SavedState
    from ffkv.activations.trigger_file import Triggers
    from ffkv.branches.behaviours.stored import PromptStates
    from ffkv.branches.translation.maps import Maps
    from ffkv.branches.values.projections import Projections
    from ffkv.corpus.corpus_file import Corpus
    from ffkv.model.checkpoint.vocabulary import Vocabulary
    from ffkv.model.values_file import ValuesFile

    return {
        "`model/vocabulary.h5`": Vocabulary,
        "`values.h5`": ValuesFile,
        "`corpus/<split>.h5`": Corpus,
        "`triggers.h5`, `triggers/<shard>.h5`": Triggers,
        "`triggers/.<shard>.h5.progress`, while a shard is unfinished": SavedState,
        "`sampled_prefixes.h5`, `sampled_prefixes/<shard>.h5`, `sampled_prefixes/<shard>.blocks/<first prefix>.h5`;"
        " without y and m also `translation/states/<shard>.h5` and its blocks": SampledPrefixes,
        "`values/projections/<group>.h5`, `translation/projections/<group>.h5`": Projections,
        "`translation/maps/<group>.h5`": Maps,
        "`behaviours/<behaviour>/states/<shard>.h5`": PromptStates,
    }


def dataset_tables() -> str:
    """Returns a table per file: name, dimensions, type, unit and meaning of each dataset, as Markdown."""
    lines = []
    for name, record in described_files().items():
        lines += [f"### {name}", "", "| dataset | dimensions | type | unit | meaning |", "|---|---|---|---|---|"]
        for part in (part for parts in datasets_of(record).values() for part in parts):
            about = part.about + (" (optional)" if part.optional else "")
            lines.append(f"| `{part.name}` | {', '.join(part.dimensions)} | {part.dtype} | {part.unit} | {about} |")
        lines.append("")
    return "\n".join(lines)


def column_tables() -> str:
    """Returns a list per table of a run, its report or a comparison: name, type, unit and meaning of each column, as Markdown."""
    from ffkv.run.report.claims import VERDICTS
    from ffkv.run.results.expected import TABLES as of_runs
    from ffkv_comparison.tables import TABLES as of_comparisons

    return "\n".join(line for table in (*of_runs.values(), VERDICTS, *of_comparisons) for line in _lines(table))


def _lines(table: Table) -> list[str]:
    only = f" It is there {table.only}." if table.only else ""
    only += f" It is there since the {table.since} edition." if table.since else ""
    path = WILD.sub(r"<\1>", table.path)
    head = [f"### `{path}`", "", f"A row is: {table.about}{only}", ""]
    return [*head, "| column | type | unit | meaning |", "|---|---|---|---|", *map(_row, table.columns), ""]


def _row(column: Column) -> str:
    kind = {"str": "text", "object": "list"}.get(column.dtype, column.dtype.rstrip("0123456789").lower())
    choices = ": " + ", ".join(f"`{each}`" for each in column.choices if each) if column.choices else ""
    when = [column.optional, f"since the {column.since} edition" if column.since else ""]
    about = (column.about + choices + "".join(f" ({each})" for each in when if each)).replace("|", "\\|")
    return f"| `{column.name}` | {kind} | {column.unit} | {about} |"


def with_tables(page: str) -> str:
    """Returns the page with its lists of datasets and columns replaced by the current ones."""
    for (begin, end), text in ((DATASETS, dataset_tables()), (TABLES, column_tables())):
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
