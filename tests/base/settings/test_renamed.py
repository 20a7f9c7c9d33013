"""Whoever uses an old name is told the new one, in one sentence."""

import pytest
from support import ROOT, snakemake

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.settings.messages import RENAMED
from ffkv.branches.settings import Settings
from ffkv.workflow.runs import resolve


def setting_at(key: str):
    """The section or setting of the default settings at a dotted name."""
    found = Settings()
    for name in key.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("old", RENAMED)
def test_each_old_name_has_a_new_one_that_is_a_setting(old):
    new, _, value = RENAMED[old].partition(": ")
    section, _, key = new.rpartition(".")
    setting_at(new)
    if value:
        assert value in str(type(setting_at(section)).model_fields[key].annotation)
    assert RENAMED[old] not in RENAMED
    if ": " not in old:
        with pytest.raises(AttributeError):
            setting_at(old)


@pytest.mark.parametrize(
    "settings, sentences",
    [
        ({"corpus_shards": 2}, ["corpus_shards is called corpus_processes now."]),
        ({"prefixes": {"keep": []}}, ["prefixes.keep is called prefixes.extra_states now."]),
        (
            {"activations": {"batch_tokens": 9, "block_sentences": 9}},
            [
                "activations.batch_tokens is called batches.tokens now.",
                "activations.block_sentences is called batches.block_sentences now.",
            ],
        ),
        ({"activations": {}}, ["activations is called batches now."]),
        ({"activations": {3: {}, "tokens": 9}}, ["activations is called batches now."]),
        (
            {"triggers": {"identical_prefixes": "once"}},
            ["triggers.identical_prefixes is called triggers.shared_prefixes_compete now."],
        ),
        (
            {"triggers": {"identical_prefixes": "each"}},
            ["triggers.identical_prefixes: each is called triggers.shared_prefixes_compete: per_sentence now."],
        ),
        (
            {"triggers": {"shared_prefixes_compete": "each"}},
            ["triggers.shared_prefixes_compete: each is called triggers.shared_prefixes_compete: per_sentence now."],
        ),
    ],
)
def test_an_old_name_in_a_settings_file(settings, sentences):
    for configuration, place in (({**settings, "runs": {"a": {}}}, ""), ({"runs": {"a": settings}}, "runs.a: ")):
        with pytest.raises(UserError) as refused:
            resolve(configuration)
        assert str(refused.value).splitlines()[1:] == [f"  {place}{sentence}" for sentence in sentences]


def test_an_old_name_in_python():
    for make, sentence in (
        (lambda: ffkv.settings.Intervention(kept=[0]), "intervention.kept is called intervention.top_k now."),
        (lambda: Settings(activations={"batch_tokens": 9}), "activations.batch_tokens is called batches.tokens now."),
    ):
        with pytest.raises(UserError) as refused:
            make()
        assert str(refused.value) == sentence
    for read, sentence in (
        (lambda: Settings().activations, "activations is called batches now."),
        (lambda: Settings().intervention.silent, "intervention.silent is called intervention.silent_below now."),
        (lambda: ffkv.settings.Activations, "ffkv.settings.Activations is called ffkv.settings.Batches now."),
    ):
        with pytest.raises(AttributeError) as unknown:
            read()
        assert str(unknown.value) == sentence


@pytest.mark.workflow
def test_an_old_name_on_the_command_line_of_snakemake(tmp_path):
    found = snakemake(tmp_path, ROOT / "config.yaml", "-n", "--config", "activations={batch_tokens: 5}")
    assert found.returncode != 0
    assert "activations.batch_tokens is called batches.tokens now." in found.stdout + found.stderr
