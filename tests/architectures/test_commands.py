"""`ffkv models`, on a small table."""

import pytest
from click.testing import CliRunner
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ffkv.model.architectures.commands import models
from ffkv.model.architectures.coverage import Row

TABLE = """model_type,proven,kind,largest_error,reason
gpt2,yes,plain,6e-07,
llama,yes,gated,5e-07,
mamba,no,,,"no feed-forward layer, it says"
"""


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    path = tmp_path / "architectures.csv"
    path.write_text(TABLE)
    monkeypatch.setattr("ffkv.model.architectures.commands.TABLE", path)
    return path


def call(*arguments: str):
    return CliRunner().invoke(models, arguments)


def test_the_table_is_shown_aligned_with_a_summary():
    assert call().stdout.splitlines() == [
        "model type  proven  error  kind of feed-forward layer, or why not",
        "gpt2        yes     6e-07  plain",
        "llama       yes     5e-07  gated",
        "mamba       no             no feed-forward layer, it says",
        "2 of 3 model types proven",
    ]


def test_only_the_named_types_are_shown():
    lines = call("mamba", "gpt2").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["gpt2", "mamba"]
    assert lines[-1] == "1 of 2 model types proven"


def test_on_a_terminal_long_reasons_are_wrapped_under_their_column(monkeypatch):
    monkeypatch.setattr("ffkv.model.architectures.commands.line_width", lambda: 50)
    assert call("mamba").stdout.splitlines()[-3:-1] == [
        "mamba       no             no feed-forward layer,",
        "                           it says",
    ]


@pytest.mark.parametrize(("name", "hint"), [("lama", "Did you mean llama?"), ("quokka", "`ffkv models` lists all.")])
@pytest.mark.parametrize("flags", [[], ["--prove"]])
def test_an_unknown_type_is_refused_with_close_names(name, hint, flags):
    error = call(name, *flags).exception
    assert str(error).startswith(f"{name} is not a model type")
    assert hint.rstrip("?") in str(error)


def test_without_the_table_the_message_says_what_to_do(stored):
    stored.unlink()
    assert "`ffkv models --prove` makes the table" in str(call().exception)


def test_the_table_is_written_as_it_was_read(tmp_path, stored):
    assert call("--output", str(tmp_path / "copy.csv")).exit_code == 0
    assert (tmp_path / "copy.csv").read_text() == stored.read_text()


def test_proving_anew_takes_the_named_types_and_leaves_the_stored_table_alone(tmp_path, stored, monkeypatch):
    asked = []

    def rows(model_types, processes):
        asked.append((model_types, processes))
        return [Row(name, "yes", "plain", "1e-07") for name in model_types]

    monkeypatch.setattr("ffkv.model.architectures.coverage.rows", rows)
    result = call("opt", "gpt2", "--prove", "--processes", "2", "--output", str(tmp_path / "new.csv"))
    assert result.exit_code == 0, result.exception
    assert asked == [(["gpt2", "opt"], 2)]
    assert result.stdout.splitlines()[-1] == "2 of 2 model types proven"
    assert (tmp_path / "new.csv").read_text().splitlines()[1:] == ["gpt2,yes,plain,1e-07,", "opt,yes,plain,1e-07,"]
    assert stored.read_text() == TABLE


def test_proving_anew_takes_every_type_where_none_is_named(monkeypatch):
    monkeypatch.setattr(
        "ffkv.model.architectures.coverage.rows",
        lambda model_types, processes: [Row(name, "no") for name in model_types],
    )
    types = len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)  # of the installed transformers
    assert call("--prove").stdout.splitlines()[-1] == f"0 of {types} model types proven"
