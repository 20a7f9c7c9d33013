"""A whole results folder of made-up but plausible tables, by the contract in docs/architecture.md."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from report.made_up import HOSTILE, KEPT, write_corpora, write_model, write_some_triggers
from report.made_up_tables import write_composition, write_costs, write_keys, write_refinement, write_values

from ffkv.settings import Settings


def write_results(folder: Path, layers: int = 6, signed: bool = True, gated: bool = False, **overrides) -> Path:
    """Writes `folder` as a finished run would stand there; `overrides` go into the settings. Returns the folder.

    signed: the model has negative coefficients, and they were kept. gated: its memories have gates.
    """
    generator = np.random.default_rng(7)
    settings = Settings.model_validate({"triggers": {"per_key": KEPT}, **overrides})
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(settings.model_dump_json())
    write_model(folder, layers, signed, gated)
    corpus = write_corpora(folder, generator)
    write_some_triggers(folder, corpus, layers, signed, gated)
    write_keys(folder, layers, generator)
    write_values(folder, layers, signed, generator)
    write_composition(folder, layers, generator)
    write_refinement(folder, layers, generator)
    write_costs(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The results of a finished run of six layers."""
    return write_results(tmp_path_factory.mktemp("results") / "demo")


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes another finished run; see `write_results`."""
    return lambda **options: write_results(tmp_path / "other", **options)


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts of the corpus that a careless page would run, reverse or swallow."""
    return HOSTILE
