"""`ffkv formats`: the tables of datasets in `docs/formats.md`, from the descriptions that files are written from."""

from pathlib import Path

import click

from ffkv.base.files.datasets import Dataset, datasets_of

BEGIN, END = "<!-- datasets: written by `ffkv formats` -->", "<!-- end of datasets -->"


def described_files() -> dict[str, type]:
    """The dataclass that describes each HDF5 file of a run, by the file's name."""
    from ffkv.activations.prefix_file import SampledPrefixes
    from ffkv.activations.resume import SavedState
    from ffkv.activations.trigger_file import Triggers
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
        "`sampled_prefixes.h5`, `sampled_prefixes/<shard>.h5`, `sampled_prefixes/<shard>.blocks/<first prefix>.h5`": (
            SampledPrefixes
        ),
        "`values/projections/<group>.h5`": Projections,
    }


def dataset_tables() -> str:
    """A table per file: name, dimensions, type, unit and meaning of each dataset, as Markdown."""
    lines = []
    for name, record in described_files().items():
        lines += [f"### {name}", "", "| dataset | dimensions | type | unit | meaning |", "|---|---|---|---|---|"]
        lines += [_row(part) for parts in datasets_of(record).values() for part in parts]
        lines.append("")
    return "\n".join(lines)


def _row(part: Dataset) -> str:
    dimensions = ", ".join(part.dimensions)
    about = part.about + (" (optional)" if part.optional else "")
    return f"| `{part.name}` | {dimensions} | {part.dtype} | {part.unit} | {about} |"


def with_tables(page: str) -> str:
    """The page with its tables of datasets replaced by the current ones."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{dataset_tables()}\n{END}{after}"


@click.command()
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default="docs/formats.md",
    show_default=True,
    help="The page whose tables of datasets are written anew.",
)
def formats(page: Path) -> None:
    """Write the tables of datasets in docs/formats.md from the descriptions in the code."""
    page.write_text(with_tables(page.read_text()))
