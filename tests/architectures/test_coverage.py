"""The rows of the coverage table, with proofs that end in each way that a proof can end."""

from types import SimpleNamespace

import pytest
import torch

from ffkv.base.errors import UserError
from ffkv.model.architectures import coverage
from ffkv.model.architectures.coverage import Row, row, table


@pytest.fixture
def proof(monkeypatch):
    """Puts a function in the place of the proof."""

    def put(function):
        monkeypatch.setattr("ffkv.model.step.prove_in_memory", function, raising=False)

    return put


def ends(outcome):
    def prove_in_memory(model, first, second):
        if isinstance(outcome, Exception):
            raise outcome
        return [SimpleNamespace(kind=kind) for kind in outcome], {"memories": 2.6e-7, "prefix": 0.0}

    return prove_in_memory


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (["plain"] * 3, Row("gpt2", "yes", "plain", "3e-07")),
        (
            ["gated; norm after", "4 experts, gated", "gated; norm after"],
            Row("gpt2", "yes", "4 experts, gated | gated; norm after", "3e-07"),
        ),
        (UserError("not causal:\n  later tokens"), Row("gpt2", "no", reason="not causal: later tokens")),
        (KeyError("wte"), Row("gpt2", "no", reason="error: KeyError: 'wte'")),
    ],
)
def test_a_row_says_how_the_proof_ended(proof, outcome, expected):
    proof(ends(outcome))
    assert row("gpt2") == expected


def test_a_row_says_why_there_is_no_model(monkeypatch):
    def fail(model_type):
        raise ImportError("needs\ntimm")

    monkeypatch.setattr("ffkv.model.architectures.tiny.tiny_model", fail)
    assert row("gpt2") == Row("gpt2", "no", reason="not built: ImportError: needs timm")


def test_the_proof_gets_two_different_pairs_of_sentences_always_the_same(proof):
    given = []

    def prove_in_memory(model, first, second):
        given.append((first, second))
        raise UserError("")

    proof(prove_in_memory)
    row("gpt2"), row("gpt2")
    assert [ids.shape for ids in given[0]] == [(2, 12)] * 2
    assert not torch.equal(*given[0])
    assert all(torch.equal(*pair) for pair in zip(*given))


def test_the_table_has_a_row_each_and_no_column_missing():
    made = table([Row("gpt2", "yes", "plain", "3e-07"), Row("xlm", "no", reason="no residual")])
    assert made.to_dict("list") == {
        "model_type": ["gpt2", "xlm"],
        "proven": ["yes", "no"],
        "kind": ["plain", ""],
        "largest_error": ["3e-07", ""],
        "reason": ["", "no residual"],
    }


def test_there_is_at_least_one_core():
    assert coverage.cores() >= 1
