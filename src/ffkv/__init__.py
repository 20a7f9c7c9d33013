"""Reads the feed-forward layers of causal language models as key-value memories (Geva et al., EMNLP 2021).

`ffkv.open("results/demo")` opens a finished run. The other functions are the steps of the workflow and the readers of
its files. `docs/python.md` is a tutorial, `docs/api.md` lists everything. `__init__.pyi` lists the names. A name is
imported when it is first used: `import ffkv` itself imports neither torch nor transformers nor pandas.

Packages beside ffkv add commands, formats, branches and rules, see `ffkv.base.doors`.
"""

from ffkv.base.public import public_names
from ffkv.base.version import version

__getattr__, __dir__, __all__ = public_names(__name__, __file__, version)
