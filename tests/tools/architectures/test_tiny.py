"""Tiny models: they build, they are small, the same seed gives the same model, and no entry of their data is dead."""

import contextlib
import dataclasses
import tomllib
from collections import Counter
from copy import deepcopy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import CONFIG_MAPPING, PreTrainedConfig

from tools.architectures.tiny import DATA, EXCEPTIONS, SIZES, VARIANTS, VOCABULARY, tiny_config, tiny_model, types


def leaves(table: dict, path: tuple[str, ...] = ()):
    """The paths of the values in nested tables."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


SOME = ["gpt2", "opt", "gpt_neox", "llama", "gemma2", "mixtral", "qwen2_moe", "bart", "granitemoehybrid", "gemma3"]
# Settings that are no fields of the config class: all configs take the first, the model reads the second without one.
NO_FIELDS = {"per_layer_config", "rope_theta"}


@pytest.mark.parametrize("model_type", SOME)
def test_a_tiny_model_is_small_and_runs_with_visible_weights(model_type):
    model = tiny_model(model_type)
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) < 1e6
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training
    with torch.no_grad():
        logits = model(input_ids=torch.arange(24).reshape(2, 12), use_cache=False).logits
    assert logits.shape == (2, 12, VOCABULARY)
    assert logits.isfinite().all()
    for name, parameter in model.named_parameters():  # no weight hides a mistake
        assert parameter.numel() == 1 or parameter.std() > 0.01, name


def test_the_same_seed_gives_the_same_model_and_leaves_the_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second, other = (tiny_model("mixtral", seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_every_variant_builds_and_is_what_it_says(subtests):
    for variant in VARIANTS:
        with subtests.test(variant=variant):
            settings = VARIANTS[variant]["settings"]
            model = tiny_model(VARIANTS[variant]["type"], settings=settings)
            assert {name: getattr(model.config, name) for name in settings} == settings
            plain = tiny_config(VARIANTS[variant]["type"])
            assert any(getattr(plain, name, None) != value for name, value in settings.items()), "it is no variant"


def test_the_multipliers_of_a_tiny_model_are_not_trivial():
    config = tiny_config("granite")
    assert 1 not in (config.residual_multiplier, config.logits_scaling, config.embedding_multiplier)


def test_a_config_inside_another_is_the_tiny_one_of_its_type():
    assert tiny_config("fuyu").text_config.to_dict() == tiny_config("persimmon").to_dict()


def test_exceptions_and_variants_are_of_types():
    assert EXCEPTIONS.keys() | {variant["type"] for variant in VARIANTS.values()} <= set(types())


def test_models_leave_the_data_as_it_was():
    before = deepcopy(EXCEPTIONS)
    for model_type in EXCEPTIONS:
        tiny_config(model_type)
    assert before == EXCEPTIONS


def without(table: dict, path: tuple[str, ...]) -> dict:
    """A copy of nested tables that lacks the value of a path."""
    name, *rest = path
    return {**table, name: without(table[name], rest)} if rest else {key: table[key] for key in table if key != name}


def test_every_exception_changes_something(subtests, monkeypatch):
    """Without it the config is another one, or none."""
    for model_type, exception in list(EXCEPTIONS.items()):
        whole = tiny_config(model_type).to_dict()
        for path in leaves(exception):
            with subtests.test(model_type=model_type, path=path), monkeypatch.context() as patch:
                patch.setitem(EXCEPTIONS, model_type, without(exception, path))
                with contextlib.suppress(ValueError, StrictDataclassClassValidationError):
                    assert tiny_config(model_type).to_dict() != whole


def test_every_setting_of_an_exception_or_a_variant_exists(subtests):
    variants = {name: (variant["type"], variant["settings"]) for name, variant in VARIANTS.items()}
    for name, (model_type, settings) in {**{kind: (kind, own) for kind, own in EXCEPTIONS.items()}, **variants}.items():
        with subtests.test(name=name):
            assert list(unknown(CONFIG_MAPPING[model_type], settings)) == []


def unknown(config: type[PreTrainedConfig], settings: dict):
    """The names in `settings` that the config class, or a class nested in it, does not have."""
    for name, value in settings.items():
        if name in config.sub_configs:
            part = type(getattr(config(), name))
            yield from unknown(part, value)
        elif name not in {field.name for field in dataclasses.fields(config)} | NO_FIELDS:
            yield name


def test_every_size_is_that_of_a_field_and_stands_once():
    sizes = tomllib.loads((DATA / "sizes.toml").read_text())["size"]
    counts = Counter(field for size in sizes for field in size["fields"])
    assert [field for field, count in counts.items() if count > 1] == []
    assert SIZES.keys() - set(all_fields()) == set()


def all_fields():
    """The names of all fields in the configs of all types, nested ones included."""
    waiting, seen = [CONFIG_MAPPING[model_type] for model_type in types()], set()
    while waiting:
        config = waiting.pop()
        if config not in seen:
            seen.add(config)
            yield from (field.name for field in dataclasses.fields(config))
            waiting += [part for part in config.sub_configs.values() if dataclasses.is_dataclass(part)]
