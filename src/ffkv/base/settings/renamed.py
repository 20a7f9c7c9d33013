"""Old names of settings and values, and the sentence for whoever uses one."""

from typing import Any

RENAMED = {
    "activations": "batches",
    "activations.batch_tokens": "batches.tokens",
    "activations.block_sentences": "batches.block_sentences",
    "corpus_shards": "corpus_processes",
    "intervention.kept": "intervention.top_k",
    "intervention.kept_prefixes": "intervention.top_k_prefixes",
    "intervention.silent": "intervention.silent_below",
    "prefixes.keep": "prefixes.extra_states",
    "triggers.identical_prefixes": "triggers.shared_prefixes_compete",
    "triggers.identical_prefixes: each": "triggers.shared_prefixes_compete: per_sentence",
    "triggers.shared_prefixes_compete: each": "triggers.shared_prefixes_compete: per_sentence",
}


def new_names(key: str, value: Any = None) -> list[str]:
    """Says what a setting is called now, or each setting of a section, in one sentence each. Most have no new name.

    `key`: the setting or section, such as "corpus_shards". Its `value` may have a new name, too.
    """
    if key in RENAMED and isinstance(value, dict):
        inside = [new_names(f"{key}.{name}", inner) for name, inner in value.items() if isinstance(name, str)]
        if any(inside):
            return [sentence for each in inside for sentence in each]
    with_value = f"{key}: {value}" if isinstance(value, str) else key
    return [f"{old} is called {RENAMED[old]} now." for old in (with_value, key) if old in RENAMED][:1]
