"""A whole results folder of made-up but plausible tables, as they are described."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffkv.base.files import tables
from ffkv.branches.behaviours.summary_tables import MISSED
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Settings
from ffkv.run.results.run import Run, open
from tests.run.report.made_up import HOSTILE, KEPT, write_corpora, write_model, write_some_triggers
from tests.run.report.made_up_rows import BEHAVIOUR, made_up
from tests.run.report.made_up_tables import (
    write_behaviour_graph,
    write_composition,
    write_concepts,
    write_costs,
    write_interventions,
    write_keys,
    write_refinement,
    write_roles,
    write_routing,
    write_values,
)

# A behaviour that the model has, with everything that can be told of it.
TOLD = {
    "several": 0,
    "kind": "pairs",
    "prompts": 198,
    "groups": 66,
    "grouped_by": "group",
    "smallest_p": 1e-9,
    "accuracy": 0.985,
    "explained": True,
    "significant": 1234,
    "screened": 56,
    "by_memories": 0.07,
    "by_memories_low": -0.01,
    "by_memories_high": 0.15,
    "pearson": 0.95,
}


def write_results(folder: Path, layers: int = 6, signed: bool = True, gated: bool = False, **overrides) -> Path:
    """Writes `folder` as a finished run would stand there; `overrides` go into the settings. Returns the folder.

    signed: the model has negative coefficients, and they were kept. gated: its memories have gates.
    """
    generator = np.random.default_rng(7)
    settings = Settings.model_validate(
        {
            "triggers": {"per_key": KEPT},
            "values": {"readout": "all"},
            "behaviours": {BEHAVIOUR: {"prompts": "agreement.jsonl"}},
            "concepts": {"french": {"labels": "french.csv"}},
            "routing": {"tokens": 1000},
            "dictionary": {"largest": 8},
            **overrides,
        }
    )
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(settings.model_dump_json())
    write_model(folder, layers, signed, gated)
    corpus = write_corpora(folder, generator)
    write_some_triggers(folder, corpus, layers, signed, gated)
    write_keys(folder, layers, generator)
    write_values(folder, layers, signed, generator)
    write_composition(folder, layers, generator)
    write_refinement(folder, layers, generator)
    write_interventions(folder, layers)
    write_roles(folder, layers, signed and gated, generator)
    write_costs(folder)
    write_behaviour_graph(folder, BEHAVIOUR, layers, generator)
    if settings.concepts:
        write_concepts(folder, generator)
    if settings.routing.tokens:
        write_routing(folder, layers)
    described = [table for branch in BRANCHES.values() for table in branch.tables]
    newest = (
        "translation/",
        "behaviours/behaviour_experts",
        "behaviours/behaviour_writers",
        "reconstruction/",
    )  # which draw last
    for table in sorted(described, key=lambda table: [table.path.startswith(path) for path in newest]):
        if not table.path.startswith("keys/read_") and not table.path.endswith(".csv"):
            continue
        if table.applies(settings) and not (path := folder / table.path.format(group=0)).exists():
            tables.write(made_up(table, layers, generator), path)  # no test asks for numbers of it
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The results of a finished run of six layers."""
    return write_results(tmp_path_factory.mktemp("results") / "demo")


class ChangedRun:
    """A run with other settings, another anatomy or other tables; what is not replaced is the run's own."""

    __class__ = Run  # for isinstance

    def __init__(self, run: Run, tables: dict[str, pd.DataFrame] | None = None, **replaced: Any):
        self._run, self._tables = run, tables or {}
        self.__dict__.update(replaced)

    def table(self, name: str) -> pd.DataFrame:
        return self._tables[name] if name in self._tables else self._run.table(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


@pytest.fixture(scope="session")
def run(folder) -> Run:
    """A finished run of six layers."""
    return open(folder)


@pytest.fixture(scope="session")
def change(run) -> Callable[..., ChangedRun]:
    """The same run with something replaced; see `ChangedRun`. `settings` is a mapping of what is not the default."""

    def change(settings: dict | None = None, **replaced: Any) -> ChangedRun:
        if settings is not None:
            replaced["settings"] = Settings.model_validate(settings)
        return ChangedRun(run, **replaced)

    return change


@pytest.fixture
def having(run, change):
    """The run with other rows in its tables of behaviours. `memories` changes the table of candidates."""

    def having(settings=None, memories=lambda table: table, sets=lambda table: table, nodes=None, missed=(), **row):
        tables = {
            "behaviours": run.table("behaviours").assign(**TOLD | row),
            "behaviour_memories": memories(run.table("behaviour_memories")),
            "behaviour_sets": sets(run.table("behaviour_sets")),
            "behaviour_missed": MISSED.frame([{"behaviour": BEHAVIOUR, **row} for row in missed]),
            "behaviour_graph_nodes": run.table("behaviour_graph_nodes") if nodes is None else nodes,
        }
        options = {"behaviours": {BEHAVIOUR: {"prompts": "agreement.jsonl", **(settings or {})}}}
        return change(options, tables=tables)

    return having


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes another finished run; see `write_results`."""
    return lambda **options: write_results(tmp_path / "other", **options)


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts of the corpus that a careless page would run, reverse or swallow."""
    return HOSTILE
