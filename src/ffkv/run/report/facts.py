"""Facts about the run: model, corpus, definitions, proof, versions and cost, as terms and their values."""

from collections import Counter

import ffkv
from ffkv.base.settings import EMBEDDED, Corpus
from ffkv.model.identities import IDENTITIES
from ffkv.run.report.wording import written
from ffkv.run.results.run import Run
from ffkv.run.results.text import duration, number, percent, visible

Terms = list[tuple[str, str]]
NEARLY_ALL = 0.5  # share of the prefixes from which on a sample is nearly all of them


def facts(run: Run) -> dict[str, Terms]:
    """Returns the tables of facts: heading to terms and values. A table without terms is left out."""
    tables = {
        "Model": model(run),
        "Made by an earlier ffkv": earlier(run),
        "Corpus": corpus(run),
        "Definitions": definitions(run),
        "Proof that the layers are sums of memories": proof(run),
        "Versions": [*sorted(run.anatomy.versions.items()), ("ffkv that wrote this page", ffkv.__version__)],
        "Time and memory": cost(run),
    }
    return {heading: terms for heading, terms in tables.items() if terms}


def signed_layers(run: Run) -> int:
    """Returns the number of layers whose coefficients can be negative."""
    return sum(layer.signed for layer in run.anatomy.layers)


def model(run: Run) -> Terms:
    """Returns the model."""
    anatomy, signed = run.anatomy, signed_layers(run)
    layers = len(anatomy.layers)
    sizes = Counter(layer.memories for layer in anatomy.layers)
    memories = [f"{number(size)} in each of {count} layers" for size, count in sizes.items()]
    kinds = ", ".join(sorted({layer.kind for layer in anatomy.layers}))
    checkpoint = f"{anatomy.checkpoint}/{anatomy.gguf}" if anatomy.gguf else anatomy.checkpoint
    return [
        ("checkpoint", visible(f"{checkpoint}, {anatomy.source}" if anatomy.commit else checkpoint)),
        ("architecture", anatomy.architecture),
        ("parameters", number(anatomy.parameters)),
        ("layers", number(layers)),
        ("width of the residual stream, d", number(anatomy.width)),
        ("memories", ", ".join(memories)),
        ("feed-forward layers", f"{kinds}; activation {anatomy.activation}"),
        ("negative coefficients", f"in {signed} of {layers} layers" if signed else "none"),
        ("vocabulary", f"{number(anatomy.vocabulary)} tokens"),
        ("context", f"{number(anatomy.context)} tokens"),
        ("weights", f"random, seed {anatomy.weights_seed}" if anatomy.weights == "random" else "of the checkpoint"),
        ("type of the weights", anatomy.dtype),
        ("hash of the weights", anatomy.model_hash),
        ("hash of the tokenizer", anatomy.tokenizer_hash),
        *([("remarks", visible(" ".join(anatomy.remarks)))] if anatomy.remarks else []),
    ]


def earlier(run: Run) -> Terms:
    """Returns what an earlier ffkv, which made the run, did not measure; no terms if it measured everything."""
    absent = "; ".join(run.unmeasured)
    return [("not measured by the earlier ffkv that made the run", visible(absent))] if absent else []


def corpus(run: Run) -> Terms:
    """Returns the text that was read, and the text that was left out."""
    source = _source(run.settings.corpus, run.files.corpora["train"]["source"])
    terms: Terms = [("source", visible(source + _sample(run.settings.corpus)))]
    for split, about in run.files.corpora.items():
        counts = dict(about["counts"])
        read = f"{number(counts.pop('documents'))} documents, {number(counts.pop('sentences'))} sentences"
        kept = (
            f"{number(about['sentences'])} sentences of {number(about['tokens'])} tokens, hash {about['corpus_hash']}"
        )
        others = "".join(f"; {name.replace('_', ' ')}: {number(count)}" for name, count in counts.items() if count)
        terms += [(f"{split}: kept", kept), (f"{split}: read", read + others)]
    return [*terms, ("first token", visible(run.files.corpora["train"]["beginning"]))]


def _source(settings: Corpus, version: str) -> str:
    if settings.dataset == EMBEDDED:
        return "the documentation of the Python library"
    if settings.dataset == "files":
        return f"files: {', '.join(settings.train + settings.validation)}"
    return f"{settings.dataset}, configuration {settings.config}" + (f", {version}" if version else "")


def _sample(settings: Corpus) -> str:
    """Says which part of the source is read; "" for all of it."""
    documents, sentences = settings.limit, settings.sentences_per_document
    of_all = f"the first {number(documents)} documents of each split" if documents else "all documents"
    if sentences:
        return f"; the first {number(sentences)} sentences of each of {of_all}"
    return f"; {of_all}" if documents else ""


def definitions(run: Run) -> Terms:
    """Returns the definitions that the settings chose, one sentence each."""
    validation, drawn = run.files.corpora["validation"], run.table("figure_9_residual_agreement")["prefixes"].max()
    prefixes = validation["tokens"] - validation["sentences"]
    sampled = {"drawn": drawn, "prefixes": prefixes, "nearly_all": drawn >= NEARLY_ALL * prefixes}
    terms = written(__package__, "definitions", run, signed_layers=signed_layers(run), **sampled)
    return [(term, text) for term, text in terms.items() if text]


def proof(run: Run) -> Terms:
    """Says how exactly the model fulfils the identities that apply to it, on which the analysis rests."""
    has_experts = any(matrix.experts for layer in run.anatomy.layers for matrix in layer.second_matrices)
    identities = [
        (IDENTITIES[name].meaning, f"largest relative error {error:.2g}")
        for name, error in run.anatomy.errors.items()
        if has_experts or name != "experts"
    ]
    read = [
        (f"layer {place.layer} is read through {place.called(run.anatomy.dictionary)}", f"leaves {percent(place.unexplained)} of its variance")
        for place in run.anatomy.dictionaries
    ]  # fmt: skip
    return identities + read


def cost(run: Run) -> Terms:
    """Wall time and peak memory per rule, the longest first, and the sum of the times."""
    rules = run.files.benchmarks().sort_values(["seconds", "rule"], ascending=[False, True])
    terms = []
    for rule in rules.itertuples():
        jobs = f"{rule.jobs} jobs, the longest took {duration(rule.longest)}" if rule.jobs > 1 else "1 job"
        memory = "" if rule.memory != rule.memory else f"; up to {number(round(rule.memory))} MiB"
        terms.append((rule.rule, f"{duration(rule.seconds)}, {jobs}{memory}"))
    return [*terms, ("all rules", duration(rules["seconds"].sum()))] if terms else []
