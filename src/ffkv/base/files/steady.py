"""Files that somebody else may write while a step reads them."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir, is_file, not_looked_up


@contextlib.contextmanager
def unchanged(paths: Iterable[Path | str]) -> Iterator[None]:
    """Makes sure that files do not change inside the `with` statement: their sizes, times and inodes.

    Raises UserError if a file changed, or is gone, or the system denies to look it up.
    """
    before = {Path(path): _state(Path(path)) for path in paths}
    yield
    for path, state in before.items():
        if _state(path) != state:
            raise UserError(
                f"{path} changed while it was read. Nothing is made from it. Start the same command again when nobody"
                " writes that file any more."
            )


def files_in(folder: Path | str) -> list[Path]:
    """Returns the files of a folder, sorted; none if there is no such folder. Raises OSError if it may not be read."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if is_file(path)) if is_dir(folder) else []


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        entry = path.stat()
    except (FileNotFoundError, NotADirectoryError):  # whoever reads it says more
        return None
    except OSError as error:
        raise not_looked_up(error) from error
    return entry.st_size, entry.st_mtime_ns, entry.st_ino
