"""What the run was: model, corpus, definitions, proof, versions and cost, as terms and their values."""

from collections import Counter

from ffkv.report.results import Results, benchmarks
from ffkv.report.text import duration, number, percent, visible
from ffkv.settings import EMBEDDED, Corpus, Settings

Terms = list[tuple[str, str]]

# What each error of the proof is about.
IDENTITIES = {
    "memories": "the memories add up to the feed-forward output: y = Σ m v + b",
    "residual": "what the block adds it to is the residual: o - y = r",
    "prefix": "a prefix's coefficients do not depend on the tokens after it",
    "head": "the last block output, read out by the head, gives the model's own logits",
}


def facts(results: Results) -> dict[str, Terms]:
    """The run in tables: heading to terms and values."""
    tables = {
        "Model": model(results),
        "Corpus": corpus(results),
        "Definitions in force": definitions(results.settings, bool(results.signed_layers)),
        "Proof that the layers decompose": proof(results),
        "Versions": sorted(results.anatomy.versions.items()),
        "Time and memory": cost(results),
    }
    return {heading: terms for heading, terms in tables.items() if terms}


def model(results: Results) -> Terms:
    """Which model was read."""
    anatomy = results.anatomy
    sizes = Counter(layer.memories for layer in anatomy.layers)
    memories = [f"{number(size)} in each of {count} layers" for size, count in sizes.items()]
    kinds = ", ".join(sorted({layer.kind for layer in anatomy.layers}))
    return [
        ("checkpoint", visible(f"{anatomy.checkpoint}, revision {anatomy.revision}")),
        ("architecture", anatomy.architecture),
        ("parameters", number(anatomy.parameters)),
        ("layers", number(results.layers)),
        ("width of the residual stream, d", number(anatomy.width)),
        ("memories", ", ".join(memories)),
        ("feed-forward layers", f"{kinds}; activation {anatomy.activation}"),
        (
            "negative coefficients",
            f"in {results.signed_layers} of {results.layers} layers" if results.signed_layers else "none",
        ),
        ("vocabulary", f"{number(anatomy.vocabulary)} tokens"),
        ("context", f"{number(anatomy.context)} tokens"),
        ("type of the weights", anatomy.dtype),
        ("hash of the weights", anatomy.model_hash),
        ("hash of the tokenizer", anatomy.tokenizer_hash),
    ]


def corpus(results: Results) -> Terms:
    """Which text was read, and what was left out of it."""
    terms = [("source", visible(_source(results.settings.corpus)))]
    for split, about in results.corpora.items():
        counts = dict(about["counts"])
        read = f"{number(counts.pop('documents'))} documents, {number(counts.pop('sentences'))} sentences"
        kept = (
            f"{number(about['sentences'])} sentences of {number(about['tokens'])} tokens, hash {about['corpus_hash']}"
        )
        others = "".join(f"; {name.replace('_', ' ')}: {number(count)}" for name, count in counts.items() if count)
        terms += [(f"{split}: kept", kept), (f"{split}: read", read + others)]
    return terms


def _source(chosen: Corpus) -> str:
    if chosen.dataset == EMBEDDED:
        return "the documentation of the Python library"
    if chosen.dataset == "files":
        return f"files: {', '.join(chosen.train + chosen.validation)}"
    return f"{chosen.dataset}, configuration {chosen.config}, revision {chosen.revision}"


def definitions(settings: Settings, signed: bool) -> Terms:
    """The definitions that the settings chose, a sentence each. signed: whether coefficients can be negative."""
    return [*_candidates(settings, signed), *_methods(settings), ("seed of every random choice", str(settings.seed))]


def _candidates(settings: Settings, signed: bool) -> Terms:
    text, triggers, prefixes = settings.corpus, settings.triggers, settings.prefixes
    long = "cut into windows" if text.long_sentences == "windows" else "left out"
    often = "once" if text.deduplicate else "each time"
    empty = "the empty prefix counts too" if triggers.include_empty_prefix else "at least one token"
    each = "one a sentence" if triggers.one_prefix_per_sentence else "any number of one sentence"
    drawn = (
        "a random sentence, then a random position" if prefixes.sample == "sentence" else "uniformly of all prefixes"
    )
    lowest = (
        f"the {triggers.per_key} prefixes of most negative coefficient, {each}" if triggers.negative else "not kept"
    )
    return [
        ("sentence", f"a {text.splitter}; longer than the model's context: {long}; identical ones count {often}"),
        ("prefix", f"the first j tokens of a sentence, never the whole; {empty}"),
        ("trigger examples of a key", f"the {triggers.per_key} prefixes of highest positive coefficient, {each}"),
        *([("negative trigger examples", lowest)] if signed else []),
        ("sampled prefixes", f"{number(prefixes.count)} of the validation split, or all; {drawn}"),
    ]


def _methods(settings: Settings) -> Terms:
    keys, values, composition = settings.keys, settings.values, settings.composition
    projection = (
        "the model's own head, final norm included" if values.projection == "head" else "the output embedding alone"
    )
    return [
        (
            "pattern",
            f"in at least {keys.minimum_prefixes} of a key's {keys.pattern_triggers} strongest trigger examples, more "
            f"often than in {number(keys.background_prefixes)} random prefixes; false discovery rate "
            f"{percent(keys.false_discovery_rate)}",
        ),
        ("prediction of a value", f"the top token by {projection}"),
        ("agreement", "a value predicts the next token of its key's strongest trigger example; of keys that have one"),
        ("predictive values", f"the {values.predictive} values of highest top probability"),
        ("active memory", "its coefficient is positive"),
        ("effective number of memories", f"the fewest that carry {percent(composition.mass)} of the sum of |m|·‖v‖"),
        ("short prefix", f"fewer than {composition.short_prefix} words, punctuation marks included"),
    ]


def proof(results: Results) -> Terms:
    """How exactly the model's layers are what this analysis takes them for."""
    errors = results.anatomy.errors.items()
    return [(IDENTITIES.get(name, name), f"largest relative error {error:.2g}") for name, error in errors]


def cost(results: Results) -> Terms:
    """Wall time and peak memory by rule, the costliest first, and their sum."""
    rules = benchmarks(results.folder, results.settings).sort_values(["seconds", "rule"], ascending=[False, True])
    terms = []
    for rule in rules.itertuples():
        jobs = f"{rule.jobs} jobs, the longest {duration(rule.longest)}" if rule.jobs > 1 else "1 job"
        memory = "" if rule.memory != rule.memory else f"; up to {number(round(rule.memory))} MiB"
        terms.append((rule.rule, f"{duration(rule.seconds)}, {jobs}{memory}"))
    return [*terms, ("all rules", duration(rules["seconds"].sum()))] if terms else []
