"""Two runs of many memories over each other: their memories by number, and by correlation."""

from pathlib import Path
from unittest.mock import patch

from benchmarks.inputs import GPT2, prepare_model
from benchmarks.made_up_run import make_run
from benchmarks.measure import Comparison as Line
from benchmarks.measure import Contender, Work
from ffkv.base.settings import Comparison
from ffkv.model.checkpoint.load import load
from ffkv.model.keys_and_values import keys
from ffkv.run.results.run import open as open_run
from ffkv_comparison import same_memories
from ffkv_comparison.comparison_file import Compared
from ffkv_comparison.same_memories import follow_memories, match_memories, unit

RUNS = Comparison(runs=["first", "second"])


def by_number(scratch: Path, shape: list[int], sentences: int) -> Work:
    """Follows the memories of a made-up run in a second one. The keys are those of a random GPT-2, loaded for each run."""
    folder, model = make_run(scratch, shape, sentences), prepare_model(scratch, shape)

    def read_keys(run: object) -> object:
        import torch

        loaded = load(model, "cpu")
        return unit(torch.cat([keys(loaded.model, layer) for layer in loaded.anatomy.layers]).numpy())

    def work() -> None:
        with patch.object(same_memories, "read_keys", read_keys):
            follow_memories(Compared("two", RUNS, [open_run(folder), open_run(folder)]))

    return work


def by_correlation(scratch: Path, shape: list[int], sentences: int) -> Work:
    """Matches memories of a made-up run with those of a second one."""
    folder = make_run(scratch, shape, sentences)

    def work() -> None:
        match_memories(Compared("two", RUNS, [open_run(folder), open_run(folder)]))

    return work


ARGUMENTS = {"shape": GPT2, "sentences": 50_000}
COMPARISONS = [
    Line(
        f"comparison: memories {name}",
        f"two runs of {GPT2}, 50,000 sentences",
        {"comparison": Contender(f"{__name__}:{function}", ARGUMENTS)},
        lambda measurements: measurements["comparison"].wall,
        60,
        "s",
        rounds=1,
    )
    for name, function in (("by number", "by_number"), ("by correlation", "by_correlation"))
]
