"""Reads the feed-forward layers of causal language models as key-value memories (Geva et al., EMNLP 2021).

`ffkv.open("results/demo")` opens a finished run. The other functions are the steps of the workflow and the readers of
its files. `docs/python.md` is a tutorial, `docs/api.md` lists everything. `__init__.pyi` lists the names. A name is
imported when it is first used: `import ffkv` itself imports neither torch nor transformers nor pandas.
"""

import ast
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
# Each public name: its module, and its name there.
_PUBLIC = {
    str(alias.asname): (str(line.module), alias.name)
    for line in _STUB.body
    if isinstance(line, ast.ImportFrom)
    for alias in line.names
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ffkv' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def __dir__() -> list[str]:
    """Returns the public names, for an editor's completion."""
    return sorted([*__all__, "__version__"])
