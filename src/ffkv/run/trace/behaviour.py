"""Which memories of a finished run cause what its model does on a set of prompts, asked without changing the run."""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from ffkv.base.files import tables
from ffkv.base.files.fault import as_path
from ffkv.base.settings import Behaviour, documents, section
from ffkv.base.steps import Work
from ffkv.branches.behaviours import step
from ffkv.branches.behaviours.graph_tables import GRAPHS
from ffkv.run.results.run import Run, check_run


@documents(Behaviour)
def behaviour(run: Run, prompts: Path | str, *, device: str = "auto", **options: Any) -> dict[str, pd.DataFrame]:
    """Asks which memories of a finished run cause what its model does on a set of prompts (docs/behaviours.md).

    It is what a run does with the setting `behaviours`, in one process and without files. The run stays as it is.

    Args:
        run: a finished run.
        prompts: file of prompts, a JSON object per line.
        device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
        {options}
    Returns:
        The tables of the report's section of behaviours, by their names: `behaviours`, `behaviour_memories`, ... And
        `memories`: contrast and screen of every memory.
    Raises:
        UserError: the file of prompts is missing or malformed, or too few prompts can be used; or the model cannot be
            differentiated, or changed while it runs.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> rows = ['{"positive": "This list"}', '{"positive": "This file"}']
        >>> rows += ['{"negative": "These lists"}', '{"negative": "These files"}']
        >>> _ = open("prompts.jsonl", "w").write("\\n".join(rows))
        >>> found = ffkv.behaviour(run, "prompts.jsonl", flips=100)
        >>> found["behaviours"]["kind"].tolist(), len(found["memories"])  # all memories of two layers
        (['lists'], 256)
    """
    check_run(run)
    path = as_path(prompts)
    its = section(Behaviour, **{**options, "prompts": str(path)})
    name = path.stem
    work = Work(device, run.settings.model.max_memory, run.settings.batches.tokens)
    model, triggers, train = (run.folder / part for part in ("model", "triggers.h5", "corpus/train.h5"))
    projections = [run.folder / f"values/projections/{group}.h5" for group in range(run.settings.layer_groups)]
    with tempfile.TemporaryDirectory(prefix="ffkv-behaviour-") as scratch:

        def write(table: str, frame: pd.DataFrame) -> Path:
            tables.write(frame, Path(scratch, f"{table}.parquet"))
            return Path(scratch, f"{table}.parquet")

        encoded = write("prompts", step.encode_behaviour(model, train, its, name, run.settings.seed))
        states = Path(scratch, "states.h5")
        step.write_states(states, step.read_behaviour(model, encoded, triggers, its, name, work))
        chosen = step.choose_memories(encoded, [states], its, name, run.settings.seed)
        memories, answers, stability = map(write, ("memories", "answers", "stability"), chosen)
        text = run.folder / "sampled_prefixes.h5", run.folder / "corpus/validation.h5"
        measured = step.measure_behaviour(
            model, encoded, memories, answers, triggers, *text, its, name, run.settings.seed, work
        )
        effects, sets, side = map(write, ("effects", "sets", "side_effects"), measured)
        made = step.graph_behaviour(model, encoded, answers, triggers, its, name, run.settings.seed, work)
        graph = {each.name: [write(each.name, table)] for each, table in zip(GRAPHS, made, strict=True)}
        summaries = step.summarize_behaviours(
            model,
            [encoded],
            [memories],
            [answers],
            [stability],
            [effects],
            [sets],
            [side],
            **graph,
            projections=projections,
            seed=run.settings.seed,
        )
    return {**summaries, "memories": chosen[0]}
