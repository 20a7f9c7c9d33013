"""Reads the feed-forward layers of causal language models as key-value memories (Geva et al., EMNLP 2021).

`ffkv.open("results/demo")` opens a finished run. The other functions are the steps of the workflow and the readers of
its files. `docs/python.md` is a tutorial, `docs/api.md` lists everything. A name is imported when it is first used:
`import ffkv` itself imports neither torch nor transformers nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Each public name: its module, and its name there. The imports below say the same to type checkers and editors.
PUBLIC = {
    # A finished run
    "open": "ffkv.results.run:open",
    "Run": "ffkv.results.run:Run",
    "Memory": "ffkv.results.memory:Memory",
    # Steps, in the order of the workflow
    "train": "ffkv.embedded.step:train",
    "prove": "ffkv.model.step:prove",
    "encode_corpus": "ffkv.corpus.step:encode_corpus",
    "find_triggers": "ffkv.activations.step:find_triggers",
    "merge_triggers": "ffkv.activations.step:merge_triggers",
    "sample_prefixes": "ffkv.activations.step:sample_prefixes",
    "merge_sampled_prefixes": "ffkv.activations.step:merge_sampled_prefixes",
    "find_patterns": "ffkv.keys.step:find_patterns",
    "remove_tokens": "ffkv.keys.step:remove_tokens",
    "measure_precision": "ffkv.keys.step:measure_precision",
    "summarize_keys": "ffkv.keys.step:summarize_keys",
    "project_values": "ffkv.values.step:project_values",
    "summarize_values": "ffkv.values.step:summarize_values",
    "measure_composition": "ffkv.composition.step:measure_composition",
    "summarize_composition": "ffkv.composition.step:summarize_composition",
    "measure_refinement": "ffkv.refinement.step:measure_refinement",
    "summarize_refinement": "ffkv.refinement.step:summarize_refinement",
    "write_report": "ffkv.report.step:write_report",
    # Files
    "read_corpus": "ffkv.corpus.corpus_file:read_corpus",
    "read_triggers": "ffkv.activations.trigger_file:read_triggers",
    "write_triggers": "ffkv.activations.trigger_file:write_triggers",
    "read_values": "ffkv.model.values_file:read_values",
    "load_model": "ffkv.model.checkpoint.load:load",
    "load_head": "ffkv.model.head.head_file:load_head",
    # Types
    "Part": "ffkv.parts:Part",
    "WHOLE": "ffkv.parts:WHOLE",
    "settings": "ffkv.settings",
    "UserError": "ffkv.errors:UserError",
}

if TYPE_CHECKING:
    from ffkv import settings as settings
    from ffkv.activations.step import find_triggers as find_triggers
    from ffkv.activations.step import merge_sampled_prefixes as merge_sampled_prefixes
    from ffkv.activations.step import merge_triggers as merge_triggers
    from ffkv.activations.step import sample_prefixes as sample_prefixes
    from ffkv.activations.trigger_file import read_triggers as read_triggers
    from ffkv.activations.trigger_file import write_triggers as write_triggers
    from ffkv.composition.step import measure_composition as measure_composition
    from ffkv.composition.step import summarize_composition as summarize_composition
    from ffkv.corpus.corpus_file import read_corpus as read_corpus
    from ffkv.corpus.step import encode_corpus as encode_corpus
    from ffkv.embedded.step import train as train
    from ffkv.errors import UserError as UserError
    from ffkv.keys.step import find_patterns as find_patterns
    from ffkv.keys.step import measure_precision as measure_precision
    from ffkv.keys.step import remove_tokens as remove_tokens
    from ffkv.keys.step import summarize_keys as summarize_keys
    from ffkv.model.checkpoint.load import load as load_model  # noqa: F401 (it has another name here)
    from ffkv.model.head.head_file import load_head as load_head
    from ffkv.model.step import prove as prove
    from ffkv.model.values_file import read_values as read_values
    from ffkv.parts import WHOLE as WHOLE
    from ffkv.parts import Part as Part
    from ffkv.refinement.step import measure_refinement as measure_refinement
    from ffkv.refinement.step import summarize_refinement as summarize_refinement
    from ffkv.report.step import write_report as write_report
    from ffkv.results.memory import Memory as Memory
    from ffkv.results.run import Run as Run
    from ffkv.results.run import open as open
    from ffkv.values.step import project_values as project_values
    from ffkv.values.step import summarize_values as summarize_values

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'ffkv' has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    """The public names, for an editor's completion."""
    return sorted([*__all__, "__version__"])
