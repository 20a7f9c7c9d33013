"""The roles of a run of the workflow: tables, columns of memories, the section of the report."""

import json

import numpy as np
import pytest

import ffkv
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor


@pytest.fixture(scope="module")
def run(tiny):
    return ffkv.open(tiny / "results/tiny")


def test_a_run_has_the_roles_of_every_memory(run):
    table, by_layer = run.files.details("roles/by_memory"), run.files.details("roles/by_layer")
    assert len(table) == 256
    assert table["key_value_cosine"].between(-1, 1).all() and table["key_value_p"].between(0, 1).all()
    assert table["gate_value_cosine"].isna().all()  # a GPT-2 has no gates
    values = ffkv.read_values(run.folder / "values.h5").value
    read, written = run.files.details("roles/types"), np.bincount(table["layer"])
    assert read.groupby("layer")["memories"].sum().tolist() == written.tolist() == [128, 128]
    own = by_layer[by_layer["column"] == "ignored_share"]
    assert own["memories"].tolist() == (np.linalg.norm(values.reshape(2, 128, -1), axis=2) > 0).sum(1).tolist()


def test_memories_are_found_and_shown_by_their_roles(run):
    found = run.memories(sort="key_value_cosine", between={"layer": (1, 1)})
    assert (found["key_value_cosine"].diff().dropna() <= 0).all() and {"role", "output_role"} <= {*found}
    assert not [name for name in found if name.endswith("_p") or (name.startswith("first_") and name != "first_match")]
    first = found.iloc[0]
    alone = ffkv.open(run.folder).memory(first["name"]).statistics  # which reads the rows of this memory only
    assert alone["role"] == first["role"] and alone["key_value_cosine"] == first["key_value_cosine"]
    assert [*alone.index] == [name for name in found if name not in ("layer", "memory", "name")]
    address = f"/r/tiny/m/{first['layer']}/{first['memory']}?format=json"
    listed = json.loads(Visitor(open_shelf([run.folder])).get(address))["statistics"]
    assert listed["role"] == first["role"] and listed["gate_value_cosine"] is None


def test_the_report_has_the_section_and_says_what_is_true(run, tiny):
    page = (tiny / "reports/tiny/index.html").read_text()
    table = run.files.details("roles/by_memory")
    assert 'id="roles"' in page and "Roles from weights" in page
    counted = {role: table["role"].isin([role, f"conditional {role}"]).sum() for role in ("enrichment", "depletion")}
    assert (
        f"{counted['enrichment']} memories enrich the direction that they read, {counted['depletion']} deplete it."
        in page
    )
    assert (tiny / "reports/tiny/figures/memory_roles.svg").exists()
