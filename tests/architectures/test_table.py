"""docs/architectures.csv: made anew for the installed transformers, it says the same, and it says what was promised."""

import re

import pytest

from ffkv.base.files.tables import read
from ffkv.model.architectures.commands import TABLE
from ffkv.model.architectures.coverage import COLUMNS, cores, proof, rows, table
from ffkv.model.architectures.tiny import VARIANTS, tiny_model, types
from ffkv.model.identities import TOLERANCE

pytestmark = pytest.mark.slow

REQUIRED = (
    "gpt2 opt gpt_neox gptj bloom mpt falcon phi llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gemma gemma2 "
    "gemma3_text olmo olmo2 olmo3 olmoe granite cohere stablelm starcoder2 deepseek_v3 gpt_oss phi3 nemotron"
)
GOAL = 166


@pytest.fixture(scope="module")
def made():
    """The table, made now by two processes or more."""
    return table(list(rows(types(), max(2, cores()))))


@pytest.fixture(scope="module")
def stored():
    """The table that is checked in."""
    return read(TABLE, texts=COLUMNS)


@pytest.mark.parametrize("column", ["model_type", "proven", "kind"])
def test_the_table_is_not_stale(made, stored, column):
    assert list(stored[column]) == list(made[column]), "run `make models`"


def test_rows_come_in_order_and_do_not_depend_on_the_number_of_processes(made):
    wanted = ["opt", "llama", "gpt2", "mamba"]
    one = table(list(rows(wanted, 1)))
    assert list(one["model_type"]) == wanted
    assert one.to_dict("records") == made.set_index("model_type").loc[wanted].reset_index().to_dict("records")


def test_the_reasons_are_not_stale(made, stored):
    """Exactly, but for the size of an error: its last digit is the processor's."""
    reasons = [[re.sub(r"\de[+-]\d\d", "...", reason) for reason in rows["reason"]] for rows in (stored, made)]
    assert reasons[0] == reasons[1], "run `make models`"


def test_every_error_is_within_the_tolerance(made, stored):
    for rows_ in (made, stored):
        proven = rows_[rows_["proven"] == "yes"]
        assert all(float(error) < TOLERANCE["float32"] for error in proven["largest_error"])


def test_nothing_ends_in_a_defect_of_ffkv(made):
    assert [row for row in made["reason"] if row.startswith("error:")] == []


def test_every_row_says_how_the_layers_are_built_or_why_not(stored):
    proven = stored["proven"] == "yes"
    assert (proven == (stored["kind"] != "")).all()
    assert (proven == (stored["reason"] == "")).all()


def test_the_goal_is_reached(stored):
    proven = set(stored["model_type"][stored["proven"] == "yes"])
    assert set(REQUIRED.split()) - proven == set()
    assert len(proven) >= GOAL


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_a_type_are_proven_too_or_refused_as_they_should_be(name):
    variant = VARIANTS[name]
    row = proof(name, tiny_model(variant["type"], settings=variant["settings"]))
    if "refused" in variant:
        assert (row.proven, variant["refused"] in row.reason) == ("no", True), row
    else:
        assert row.proven == "yes", row
