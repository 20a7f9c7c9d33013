"""What the Snakemake workflow and `ffkv init` need of Python. The rules themselves are in `workflow/` of the clone.

`rules` has what the rules take from the settings, `inputs` the local files whose content counts, `jobs` the step behind
each rule, and the list of jobs for `ffkv plan`. `live` shows the progress of running jobs at a terminal. `runs` reads a
settings file with several runs and adds their controls. `changed` compares it with the settings that a run was made
with. `settings_file` writes the default one, and has `ffkv init`, `ffkv settings` and `ffkv write-settings`. `recover`
is `ffkv recover`, which cleans up after a Snakemake that was killed. `dry_run` is what `snakemake -n` tells.
"""

from collections.abc import Iterable
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.terminal import plain
from ffkv.base.version import version

PACKAGE = Path(__file__).parents[1]
CLONE = PACKAGE.parents[1]
IN_CLONE = is_file(CLONE / "workflow/Snakefile")
# Where Snakefile, workflow/, envs/ and profiles/ are: in the clone, or in the copy of them that a wheel has (setup.py).
ROOT = CLONE if IN_CLONE else PACKAGE / "clone"
SNAKEFILE = str(ROOT / "workflow/Snakefile")
SCHEMA = ROOT / "workflow/schemas/config.schema.json"
# What pip can install ffkv from: the clone, or the released package.
SOURCE = str(CLONE) if IN_CLONE else f"ffkv=={version()}"
checked: list[str] = []  # the settings files of a Snakefile that `ffkv init` wrote


def check_settings_files(files: Iterable[Path | str]) -> None:
    """Refuses settings files that Snakemake would read without a word, such as one in which a key is written twice.

    Raises WorkflowError, with the file and the line, if a file cannot be read as settings.
    """
    from snakemake.exceptions import WorkflowError

    from ffkv.base.settings.yaml_file import read_settings

    try:
        for file in files:
            read_settings(file)
            checked.append(str(file))
    except UserError as error:
        raise WorkflowError(plain(str(error))) from None
