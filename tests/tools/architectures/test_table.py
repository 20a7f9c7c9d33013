"""docs/architectures.csv: made anew for the installed transformers, it says the same, and it says what was promised.

All 196 types take a minute. Here are one of each kind of layers, and an eighth of those that were promised and of those that are
not proven, drawn anew each time. With `FFKV_FULL`, as in `make test-failures`, it is the whole table.
"""

import re

import pytest
from support import FULL

from ffkv.base.files.tables import read
from ffkv.model.identities import TOLERANCE
from tools.architectures.__main__ import TABLE
from tools.architectures.coverage import COLUMNS, row, rows, table
from tools.architectures.tiny import VARIANTS, types

pytestmark = pytest.mark.slow

REQUIRED = (
    "gpt2 opt gpt_neox gptj bloom mpt falcon phi llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gemma gemma2 "
    "gemma3_text olmo olmo2 olmo3 olmoe granite cohere stablelm starcoder2 deepseek_v3 gpt_oss phi3 nemotron"
)
GOAL = 171


@pytest.fixture(scope="module")
def stored():
    """The table that is checked in."""
    return read(TABLE, texts=COLUMNS)


@pytest.fixture(scope="module")
def chosen(stored):
    """The rows of the checked-in table that are made anew."""
    if FULL:
        return stored
    drawn = stored.sample(frac=1)
    others = drawn[(drawn["proven"] == "no") | drawn["model_type"].isin(REQUIRED.split())]
    return stored[stored.index.isin(drawn.index[~drawn.duplicated("kind")].union(others.index[: len(others) // 8]))]


@pytest.fixture(scope="module")
def made(chosen):
    """The same rows, made now."""
    return table([row(model_type) for model_type in chosen["model_type"]])


def test_every_type_of_transformers_has_a_row(stored):
    assert list(stored["model_type"]) == types(), "run `make models`"


@pytest.mark.many
@pytest.mark.parametrize("column", ["proven", "kind"])
def test_the_table_is_not_stale(made, chosen, column):
    assert list(chosen[column]) == list(made[column]), "run `make models`"


@pytest.mark.skipif(not FULL, reason="two processes import transformers: with FFKV_FULL only")
def test_rows_come_in_order_and_do_not_depend_on_the_number_of_processes(made):
    wanted = ["opt", "llama", "gpt2", "mamba"]
    two = table(list(rows(wanted, 2)))
    assert list(two["model_type"]) == wanted
    assert two.to_dict("records") == made.set_index("model_type").loc[wanted].reset_index().to_dict("records")


@pytest.mark.many
def test_the_reasons_are_not_stale(made, chosen):
    """Exactly, but for the size of an error: its last digit is the processor's."""
    reasons = [[re.sub(r"\de[+-]\d\d", "...", reason) for reason in rows["reason"]] for rows in (chosen, made)]
    assert reasons[0] == reasons[1], "run `make models`"


@pytest.mark.many
def test_every_error_is_within_the_tolerance(made, stored):
    for rows_ in (made, stored):
        proven = rows_[rows_["proven"] == "yes"]
        assert all(float(error) < TOLERANCE["float32"] for error in proven["largest_error"])


@pytest.mark.many
def test_nothing_ends_in_a_defect_of_ffkv(made):
    assert [row for row in made["reason"] if row.startswith("error:")] == []


def test_every_row_says_how_the_layers_are_built_or_why_not(stored):
    proven = stored["proven"] == "yes"
    assert (proven == (stored["kind"] != "")).all()
    assert (stored["reason"][~proven] != "").all()
    assert all(reason == "" or reason.startswith("context") for reason in stored["reason"][proven])


def test_the_goal_is_reached(stored):
    proven = set(stored["model_type"][stored["proven"] == "yes"])
    assert set(REQUIRED.split()) - proven == set()
    assert len(proven) >= GOAL


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_a_type_are_proven_too_or_refused_as_they_should_be(name):
    variant = VARIANTS[name]
    found = row(variant["type"], variant["settings"])
    if "refused" in variant:
        assert (found.proven, variant["refused"] in found.reason) == ("no", True), found
    else:
        assert found.proven == "yes", found
