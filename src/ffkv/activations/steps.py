"""The steps of the wing `activations`."""

from ffkv.base.steps import MODULES, Step

TRIGGERS = Step(
    "ffkv.activations.step:find_triggers",
    settings=("triggers", "batches", *MODULES, "model/max_memory", "shards"),
    imports="model",
)
SAMPLED_PREFIXES = Step(
    "ffkv.activations.step:sample_prefixes",
    settings=("prefixes", "batches", *MODULES, "model/max_memory", "seed", "shards"),
    imports="model",
)
STEPS = {
    "triggers": TRIGGERS,
    "merge_triggers": Step("ffkv.activations.merge:merge_triggers"),
    "sampled_prefixes": SAMPLED_PREFIXES,
    "merge_sampled_prefixes": Step("ffkv.activations.merge:merge_sampled_prefixes"),
}
