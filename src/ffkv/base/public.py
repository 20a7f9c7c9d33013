"""Public names of a package: imported when they are first used, and listed in its `__init__.pyi`."""

import ast
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Public = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def public_names(package: str, file: str, version: Callable[[], str] | None = None) -> Public:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package, from the stub beside `file`. `version` gives its `__version__`.

    If torch is not there yet when a name is first used, its threads will sleep while they wait, see `ffkv.base.process.runtime`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    # Each public name: its module, and its name there.
    public = {
        str(alias.asname): (str(line.module), alias.name)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    # Those of a package that is not installed are told when they are used.
    there = [name for name, (module, _) in public.items() if find_spec(module.partition(".")[0])]

    def get(name: str) -> Any:
        if name == "__version__" and version:
            return version()
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if "torch" not in sys.modules:
            __import__("ffkv.base.process.runtime", fromlist=["configure"]).configure()
        module, attribute = public[name]
        if name not in there:
            from ffkv.base.doors import in_package
            from ffkv.base.errors import UserError

            raise UserError(in_package(f"{package}.{name}", module.partition(".")[0].replace("_", "-")))
        return getattr(__import__(module, fromlist=[attribute]), attribute)

    return get, lambda: sorted([*there, *(["__version__"] if version else [])]), there
