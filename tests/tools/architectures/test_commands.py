"""`python -m tools.architectures` on a small table, and its rows, with proofs that end in each way that a proof can end."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support import ROOT
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.step import prove
from tools.architectures.__main__ import models
from tools.architectures.coverage import Row, row, table
from tools.architectures.tiny import save_tiny, tiny_model

TABLE = """model_type,proven,kind,largest_error,reason
gpt2,yes,plain,6e-07,
llama,yes,gated,5e-07,
mamba,no,,,"no feed-forward layer, it says"
"""


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    path = tmp_path / "architectures.csv"
    path.write_text(TABLE)
    monkeypatch.setattr("tools.architectures.__main__.TABLE", path)
    return path


def call(*arguments: str):
    return CliRunner().invoke(models, arguments)


def test_the_table_is_shown_aligned_with_a_summary():
    assert call().stdout.splitlines() == [
        "model type  proven  error  kind of feed-forward layer, or why not",
        "gpt2        yes     6e-07  plain",
        "llama       yes     5e-07  gated",
        "mamba       no             no feed-forward layer, it says",
        "2 of 3 model types proven, on a tiny random checkpoint of each",
    ]


def test_only_the_named_types_are_shown():
    lines = call("mamba", "gpt2").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["gpt2", "mamba"]
    assert lines[-1] == "1 of 2 model types proven, on a tiny random checkpoint of each"


def test_on_a_terminal_long_reasons_are_wrapped_under_their_column(monkeypatch):
    monkeypatch.setattr("tools.architectures.__main__.line_width", lambda: 50)
    assert call("mamba").stdout.splitlines()[-3:-1] == [
        "mamba       no             no feed-forward layer,",
        "                           it says",
    ]


@pytest.mark.parametrize(
    ("name", "hint"), [("lama", "Did you mean llama?"), ("quokka", "`python -m tools.architectures` lists all.")]
)
@pytest.mark.parametrize("flags", [[], ["--prove"]])
def test_an_unknown_type_is_refused_with_close_names(name, hint, flags):
    error = call(name, *flags).exception
    assert str(error).startswith(f"{name} is not a model type")
    assert hint.rstrip("?") in str(error)


def test_the_table_is_written_as_it_was_read(tmp_path, stored):
    assert call("--output", str(tmp_path / "copy.csv")).exit_code == 0
    assert (tmp_path / "copy.csv").read_text() == stored.read_text()


def test_proving_anew_takes_the_named_types_and_leaves_the_stored_table_alone(tmp_path, stored, monkeypatch):
    asked = []

    def rows(model_types, processes):
        asked.append((model_types, processes))
        return [Row(name, "yes", "plain", "1e-07") for name in model_types]

    monkeypatch.setattr("tools.architectures.coverage.rows", rows)
    result = call("opt", "gpt2", "--prove", "--processes", "2", "--output", str(tmp_path / "new.csv"))
    assert result.exit_code == 0, result.exception
    assert asked == [(["gpt2", "opt"], 2)]
    assert result.stdout.splitlines()[-1] == "2 of 2 model types proven, on a tiny random checkpoint of each"
    assert (tmp_path / "new.csv").read_text().splitlines()[1:] == ["gpt2,yes,plain,1e-07,", "opt,yes,plain,1e-07,"]
    assert stored.read_text() == TABLE


def test_proving_anew_takes_every_type_where_none_is_named(monkeypatch):
    monkeypatch.setattr(
        "tools.architectures.coverage.rows", lambda types, processes: [Row(name, "no") for name in types]
    )
    types = len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)  # of the installed transformers
    summary = f"0 of {types} model types proven, on a tiny random checkpoint of each"
    assert call("--prove").stdout.splitlines()[-1] == summary


def test_a_mistake_ends_without_a_traceback(forked_python):
    command = [forked_python, "-m", "tools.architectures", "lama"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "lama is not a model type" in done.stderr and "Traceback" not in done.stderr


class Proven:
    """What a proof gives, as far as a row reads it."""

    def __init__(self, kinds: list[str], remarks: list[str]):
        self.model, self.tokenizer = None, None
        errors = {"memories": 2.6e-7, "prefix": 0.0}
        layers = [SimpleNamespace(kind=kind) for kind in kinds]
        self.anatomy = SimpleNamespace(layers=layers, errors=errors, remarks=remarks, proven_tokens=64)

    def write(self, folder):
        return self.anatomy


@pytest.fixture
def ends(monkeypatch):
    """Lets the proof of a saved checkpoint end in a way."""

    def put(outcome):
        def prove(settings):
            assert (Path(settings.checkpoint) / "config.json").is_file()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr("ffkv.model.step.prove", prove)
        monkeypatch.setattr("ffkv.model.discover.probe_texts.passages", lambda *_: (None, None))
        monkeypatch.setattr("ffkv.model.discover.probe_texts.long_row", lambda *_: None)
        monkeypatch.setattr("ffkv.model.discover.lengths.steady_length", lambda *_, **__: 64)

    return put


def named(reason: str) -> UserError:
    """A refusal as `prove` makes it: with the checkpoint in front of the reason."""
    error = UserError(f"/tmp/x (GPT2LMHeadModel) cannot be read: {reason}")
    error.__cause__ = UserError(reason)
    return error


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Proven(["plain"] * 3, ["transformers says: ..."]), Row("gpt2", "yes", "plain", "3e-07")),
        (
            Proven(["gated; norm after", "4 experts, gated", "gated; norm after"], ["context 16 of 64 tokens: why"]),
            Row("gpt2", "yes", "4 experts, gated | gated; norm after", "3e-07", "context 16 of 64 tokens: why"),
        ),
        (named("not causal:\n  later tokens"), Row("gpt2", "no", reason="not causal: later tokens")),
        (KeyError("wte"), Row("gpt2", "no", reason="error: KeyError: 'wte'")),
    ],
)
def test_a_row_says_how_the_proof_ended(ends, outcome, expected):
    ends(outcome)
    assert row("gpt2") == expected


def test_a_row_says_why_there_is_no_model(monkeypatch):
    def fail(*_):
        raise ImportError("needs\ntimm")

    monkeypatch.setattr("tools.architectures.tiny.save_tiny", fail)
    assert row("gpt2") == Row("gpt2", "no", reason="not built: ImportError: needs timm")


@pytest.mark.parametrize("settings", [{}, {"index_n_heads": 2}])
def test_a_row_says_what_is_said_of_a_checkpoint(tmp_path, settings):
    """With few heads, the index of DeepSeek 3.2 gives many tokens 0: which of them it picks depends on the row."""
    save_tiny(tmp_path, "deepseek_v32", settings)
    found = row("deepseek_v32", settings)
    if not settings:
        assert found.proven == "yes"
        assert prove(Model(checkpoint=str(tmp_path), device="cpu")).anatomy.context == 64
    else:
        reason = r"in rows of more than \d+ tokens the coefficients of a prefix depend on what follows it"
        assert re.match(reason, found.reason)
        with pytest.raises(UserError, match=re.escape(found.reason)):
            prove(Model(checkpoint=str(tmp_path), device="cpu"))


@pytest.mark.parametrize(("kind", "type_of_text"), [("whisper", "whisper"), ("mllama", "mllama_text_model")])
def test_checkpoints_whose_config_is_unusual_are_read(kind, type_of_text):
    """One names its context as no other does, the model of the other has the config of its text part alone."""
    assert tiny_model(kind).config.model_type == type_of_text
    assert row(kind).proven == "yes"


def test_the_table_has_a_row_each_and_no_column_missing():
    made = table([Row("gpt2", "yes", "plain", "3e-07"), Row("xlm", "no", reason="no residual")])
    assert made.to_dict("list") == {
        "model_type": ["gpt2", "xlm"],
        "proven": ["yes", "no"],
        "kind": ["plain", ""],
        "largest_error": ["3e-07", ""],
        "reason": ["", "no residual"],
    }
