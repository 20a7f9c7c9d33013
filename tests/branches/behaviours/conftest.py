"""A behaviour from prompts to tables, without Snakemake."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from ffkv.base.files import tables
from ffkv.base.steps import Part, Work
from ffkv.branches.behaviours.branch import BRANCH
from ffkv.branches.behaviours.stored import write_states
from ffkv.branches.behaviours.tables import GRAPHS
from ffkv.branches.given import Given
from ffkv.branches.settings import Behaviour
from ffkv.model.effects.rerun import Running, keeps, rerunning
from ffkv.model.head.head_file import load_head
from ffkv.run.ask import call
from tests.branches.intervention.conftest import write_inputs


class Made(NamedTuple):
    """What the steps of a behaviour made."""

    prompts: pd.DataFrame
    memories: pd.DataFrame
    answers: pd.DataFrame
    stability: pd.DataFrame
    effects: pd.DataFrame
    sets: pd.DataFrame
    parts: pd.DataFrame
    side_effects: pd.DataFrame
    writers: pd.DataFrame
    experts: pd.DataFrame
    summaries: dict[str, pd.DataFrame]
    states: list[Path]


def write_prompts(path: Path, rows: list[dict]) -> Path:
    """Writes a file of prompts."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(folder: Path, files: dict[str, Path], shards: int = 1, *, prompts: list[dict] | str, **settings) -> Made:
    """Takes a behaviour through all steps, in some shards. `files`: those of `write_inputs`. `prompts`: rows, or their file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = prompts if isinstance(prompts, str) else str(write_prompts(folder / "prompts.jsonl", prompts))
    its, files = Behaviour(prompts=path, **settings), {**files}

    def write(name: str, frame: pd.DataFrame) -> Path:
        tables.write(frame, folder / f"{name}.parquet")
        return folder / f"{name}.parquet"

    def take(step: str, number: int = 0) -> Any:
        with Given(Work("cpu", batch_tokens=64, part=Part(number, shards)), "planted", **files) as given:
            return call(BRANCH, BRANCH.steps[step], given, {"behaviours": its, "seed": 0})

    files["encode"] = write("prompts", take("encode"))
    files["read"] = states = [folder / f"states-{number}.h5" for number in range(shards)]
    for number, path in enumerate(states):
        write_states(path, take("read", number))
    chosen = take("choose")
    files |= {name: write(name, table) for name, table in zip(("memories", "answers", "stability"), chosen)}
    measured = ("effects", "sets", "parts", "side_effects", "writers")
    of_shards = [take("measure", number) for number in range(shards)]
    effects, sets, parts, side, writers = (
        [write(f"{name}-{number}", made[at]) for number, made in enumerate(of_shards)]
        for at, name in enumerate(measured)
    )
    graph, experts = take("graph"), take("experts")
    of_all = ("model", "encode", "memories", "answers", "stability")
    files = {name: files[name] for name in of_all} | {"projections": [files["projections"]]}
    files |= {"effects": effects, "sets": sets, "parts": parts, "side_effects": side, "writers": writers}
    files |= {each.name: write(each.name, table) for each, table in zip(GRAPHS, graph, strict=True)}
    files["experts"] = write("experts", experts)
    summaries = take("summarize")
    return Made(
        tables.read(files["encode"]),
        *chosen,
        tables.read_all(effects),
        tables.read_all(sets),
        tables.read_all(parts),
        tables.read_all(side),
        tables.read_all(writers),
        experts,
        summaries,
        states,
    )


def expect_equal(one: Made, other: Made) -> None:
    """All tables of steps are equal, and have rows."""
    for name in ("memories", "answers", "stability", "effects", "sets", "side_effects", "writers"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.equals(right), name
        assert len(left) or name == "writers", name  # which are told of pairs that are patched to each other


@pytest.fixture(scope="session")
def planted_inputs(tmp_path_factory) -> dict[str, Path]:
    """The files of a model whose memories are set by hand, see `test_planted`."""
    from tests.branches.behaviours.test_planted import planted_checkpoint

    folder = tmp_path_factory.mktemp("planted")
    words = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    return write_inputs(folder / "run", planted_checkpoint(folder / "checkpoint"), words)


@pytest.fixture
def running(proven, load_kind):
    """A model that changes while it runs, by its kind. `whole`: it reads whole prefixes, and keeps no keys and values."""

    def get(kind: str, whole: bool = False) -> Running:
        loaded = load_kind(kind)
        keeping = not whole and keeps(loaded)
        reruns = [rerunning(loaded, layer, 64, keeping) for layer in loaded.anatomy.layers]
        return Running(loaded, load_head(proven(kind), "cpu"), keeping, reruns, 64)

    return get
