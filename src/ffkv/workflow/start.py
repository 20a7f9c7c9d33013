"""The files that a folder needs, so that `snakemake` there runs the workflow that is installed with ffkv."""

from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.settings import reference
from ffkv.workflow import ROOT, SCHEMA

FILES = ("Snakefile", "profiles/default/profile.yaml", "profiles/slurm/profile.yaml")


def start_files() -> dict[str, str]:
    """Returns the text of each file, by its path below the folder."""
    settings = reference.default().replace(str(reference.SCHEMA), str(SCHEMA))
    return {name: (ROOT / name).read_text("utf-8") for name in FILES} | {"config.yaml": settings}


def write_start(folder: Path) -> list[Path]:
    """Writes the files into a folder.

    Args:
        folder: is made if it does not exist. Its other files stay as they are.
    Returns:
        The files that were written.
    Raises:
        UserError: one of the files exists already. Then nothing is written.
    """
    files = {folder / name: text for name, text in start_files().items()}
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise UserError(
            f"`ffkv init` overwrites nothing, and these exist already: {', '.join(existing)}. "
            "Name another folder, or move them away."
        )
    for path, text in files.items():
        with atomic(path, summed=False) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return list(files)
