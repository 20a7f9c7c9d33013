"""A behaviour from prompts to tables, without Snakemake."""

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from intervention.conftest import write_inputs

from ffkv.base.files import tables
from ffkv.base.parts import Part
from ffkv.base.settings import Behaviour
from ffkv.base.steps import Work
from ffkv.branches.behaviours import step
from ffkv.branches.behaviours.graph_tables import GRAPHS


class Made(NamedTuple):
    """What the steps of a behaviour made."""

    prompts: pd.DataFrame
    memories: pd.DataFrame
    answers: pd.DataFrame
    stability: pd.DataFrame
    effects: pd.DataFrame
    sets: pd.DataFrame
    side_effects: pd.DataFrame
    summaries: dict[str, pd.DataFrame]
    states: list[Path]


def write_prompts(path: Path, rows: list[dict]) -> Path:
    """Writes a file of prompts."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(folder: Path, files: tuple[Path, ...], shards: int = 1, **settings) -> Made:
    """Takes a behaviour through all steps, in some shards. `files`: those of `write_inputs`."""
    model, triggers, projections, sampled, train, validation = files
    folder.mkdir(parents=True, exist_ok=True)
    its = Behaviour(**settings)

    def write(name: str, frame: pd.DataFrame) -> Path:
        tables.write(frame, folder / f"{name}.parquet")
        return folder / f"{name}.parquet"

    works = [Work("cpu", batch_tokens=64, part=Part(number, shards)) for number in range(shards)]
    encode = write("prompts", step.encode_behaviour(model, train, its, "planted"))
    states = []
    for number, work in enumerate(works):
        states.append(folder / f"states-{number}.h5")
        step.write_states(states[-1], step.read_behaviour(model, encode, triggers, its, "planted", work))
    chosen = step.choose_memories(encode, states, its, "planted")
    memories, answers, stability = map(write, ("memories", "answers", "stability"), chosen)
    effects, sets, side = [], [], []
    for number, work in enumerate(works):
        found = step.measure_behaviour(
            model, encode, memories, answers, triggers, sampled, validation, its, "planted", work=work
        )
        effects.append(write(f"effects-{number}", found[0]))
        sets.append(write(f"sets-{number}", found[1]))
        side.append(write(f"side-{number}", found[2]))
    graph = step.graph_behaviour(model, encode, answers, triggers, its, "planted", work=works[0])
    graph_files = [[write(each.name, table)] for each, table in zip(GRAPHS, graph, strict=True)]
    summaries = step.summarize_behaviours(
        model, [encode], [memories], [answers], [stability], effects, sets, side, *graph_files, [projections]
    )
    return Made(
        tables.read(encode),
        *chosen,
        tables.read_all(effects),
        tables.read_all(sets),
        tables.read_all(side),
        summaries,
        states,
    )


@pytest.fixture(scope="session")
def planted_inputs(tmp_path_factory) -> tuple[Path, ...]:
    """The files of a model whose memories are set by hand, see `test_planted`."""
    from behaviours.test_planted import planted_checkpoint

    folder = tmp_path_factory.mktemp("planted")
    words = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    return write_inputs(folder / "run", planted_checkpoint(folder / "checkpoint"), words)
