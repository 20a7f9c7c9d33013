"""The cases: each module has a list COMPARISONS."""

import importlib
import pkgutil
from collections.abc import Sequence

from benchmarks.measure import Comparison

NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__))


def comparisons_of(names: Sequence[str] = NAMES) -> list[Comparison]:
    """The comparisons of some modules of this package, in order."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [comparison for module in modules for comparison in module.COMPARISONS]
