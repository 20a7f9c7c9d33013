"""Options that the commands of annotation share."""

import click

from ffkv.base.options import FOLDER, WRITABLE

RESULTS = click.argument("results", type=FOLDER)
ANNOTATIONS = click.option(
    "--annotations",
    type=WRITABLE,
    help="Folder of the run's annotations.  [default: as the setting annotation.folder says]",
)
