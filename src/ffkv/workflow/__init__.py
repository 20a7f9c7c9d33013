"""The Snakemake workflow: its rules, and what a Snakefile needs to use them as a module."""

from collections.abc import Iterable
from pathlib import Path

from ffkv import __version__

FOLDER = Path(__file__).parent
SNAKEFILE = str(FOLDER / "Snakefile")
SCHEMA = FOLDER / "schemas/config.schema.json"
CLONE = FOLDER.parents[2]
# What pip can install ffkv from: the clone that this package is part of, or the released package.
SOURCE = str(CLONE) if (CLONE / "pyproject.toml").is_file() else f"ffkv=={__version__}"


def check_settings_files(files: Iterable[Path | str]) -> None:
    """Refuses settings files that Snakemake would read without a word, such as one in which a key is written twice.

    Args:
        files: settings files in YAML or JSON.
    Raises:
        WorkflowError: a file cannot be read as settings. Names the file and the line.
    """
    from snakemake.exceptions import WorkflowError

    from ffkv.base.errors import UserError
    from ffkv.base.settings.yaml_file import read_settings
    from ffkv.base.terminal import plain

    try:
        for file in files:
            read_settings(file)
    except UserError as error:
        raise WorkflowError(plain(str(error))) from None
