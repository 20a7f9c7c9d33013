"""Which modules the numbers of each rule depend on.

A change of a listed module repeats the rule, and a saved shard from before the change is not continued. A change of any
other module does neither. The parameter `code` of the rules and the identity of a saved shard both come from this list. A
test compares the list with the imports of the steps.
"""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
PASS = (
    "activations/batches.py",
    "activations/packing.py",
    "activations/pass_state.py",
    "activations/resume.py",
    "activations/statistics.py",
    "activations/step.py",
    "activations/top_t.py",
    "activations/trigger_file.py",
    "batching.py",
    "corpus/competing.py",
    "corpus/corpus_file.py",
    "corpus/document.py",
    "corpus/encode.py",
    "corpus/rows.py",
    "corpus/sentences.py",
    "corpus/shared_prefixes.py",
    "fairseq",
    "model/anatomy.py",
    "model/checkpoint",
    "model/discover/find.py",
    "model/experts",
    "model/placement",
    "model/tap",
)
MERGE = (
    "activations/merge.py",
    "activations/prefix_file.py",
    "activations/step.py",
    "activations/trigger_file.py",
    "model/anatomy.py",
)
MODEL = ("fairseq", "model")
TRIGGERS_READ_AGAIN = (
    "activations/batches.py",
    "activations/last_token.py",
    "activations/trigger_file.py",
    "batching.py",
    "corpus",
    "keys",
    "multiple_tests.py",
    "streams.py",
    *MODEL,
)
REPORT = ("activations/trigger_file.py", "corpus", "intervention/tables.py", "report", "results", *MODEL)

# Rule: paths below src/ffkv. A folder means every module in it. Only the expensive rules name single modules of a room that
# an earlier rule depends on as a whole: a change there repeats the earlier rule and, with it, all rules that read its files.
NUMBERS_DEPEND_ON: dict[str, tuple[str, ...]] = {
    "train": ("batching.py", "corpus", "embedded"),
    "model": MODEL,
    "corpus": ("corpus", *MODEL),
    "triggers": ("activations/stages.py", "activations/triggers.py", "model/identities.py", *PASS),
    "merge_triggers": MERGE,
    "sampled_prefixes": (
        "activations/last_token.py",
        "activations/prefix_file.py",
        "activations/prefix_sample.py",
        "activations/states.py",
        "streams.py",
        *PASS,
    ),
    "merge_sampled_prefixes": MERGE,
    "keys_patterns": ("activations/trigger_file.py", "corpus", "keys", "multiple_tests.py", "streams.py"),
    "keys_removal": TRIGGERS_READ_AGAIN,
    "keys_precision": TRIGGERS_READ_AGAIN,
    "keys_summarize": (
        "activations/trigger_file.py",
        "corpus",
        "files/tables.py",
        "intervals.py",
        "keys",
        "streams.py",
    ),
    "values_project": (
        "activations/trigger_file.py",
        "values/compare.py",
        "values/projections.py",
        "values/step.py",
        *MODEL,
    ),
    "values_summarize": (
        "activations/trigger_file.py",
        "corpus",
        "files/tables.py",
        "intervals.py",
        "model",
        "streams.py",
        "values/step.py",
        "values/summaries.py",
    ),
    "composition_measure": (
        "activations/prefix_file.py",
        "composition/by_prefix.py",
        "composition/step.py",
        "corpus",
        "values/projections.py",
        *MODEL,
    ),
    "composition_summarize": (
        "composition/step.py",
        "composition/summaries.py",
        "files/tables.py",
        "intervals.py",
        "model",
    ),
    "refinement_measure": ("activations/prefix_file.py", "refinement/cases.py", "refinement/step.py", *MODEL),
    "refinement_summarize": (
        "corpus",
        "files/tables.py",
        "intervals.py",
        "refinement/cases.py",
        "refinement/changes.py",
        "refinement/step.py",
        "refinement/summaries.py",
        "streams.py",
        *MODEL,
    ),
    "intervention_measure": (
        "activations/batches.py",
        "activations/last_token.py",
        "activations/trigger_file.py",
        "batching.py",
        "corpus",
        "intervention/by_layer.py",
        "intervention/changes.py",
        "intervention/effects.py",
        "intervention/measure.py",
        "intervention/rerun.py",
        "intervention/sample.py",
        "intervention/significance.py",
        "intervention/step.py",
        "intervention/tables.py",
        "multiple_tests.py",
        "streams.py",
        "values/projections.py",
        *MODEL,
    ),
    "intervention_summarize": (
        "files/tables.py",
        "intervals.py",
        "intervention/step.py",
        "intervention/summaries.py",
        "intervention/tables.py",
        "model",
        "multiple_tests.py",
        "streams.py",
        "values/projections.py",
    ),
    "annotate_agreement": (
        "activations/trigger_file.py",
        "annotation",
        "corpus",
        "intervals.py",
        "intervention/tables.py",
        "keys",
        "results",
        "streams.py",
        *MODEL,
    ),
    "comparison_measure": ("comparison", "intervals.py", "streams.py", *REPORT),
    "comparison_report": ("comparison", *REPORT),
    "report": ("multiple_tests.py", *REPORT),
}

# Modules that steps import and that change no number, with the reason.
CHANGES_NO_NUMBER: dict[str, str] = {
    "__init__.py": "It holds the version and the names of the public functions.",
    "dependencies.py": "It says which modules numbers depend on.",
    "export": "An export is asked of a finished run. No step asks for one.",
    "errors.py": "An error ends the step.",
    "files": "Numbers are stored and read bit by bit. A new format has a new version, which the readers check.",
    "hub": "What is read is a commit, which Snakemake tracks. What was fetched is checked against its hash.",
    "options.py": "An option carries a setting or a path, which Snakemake tracks.",
    "parts.py": "Shards and layer groups change no number. A test runs the same run with other numbers of them.",
    "process": "It shows progress, handles signals, and chooses threads and the device.",
    "terminal.py": "It prints.",
    "trace": "A trace is asked of a finished run. No step asks for one.",
    "settings": "A setting reaches a step by its value, which Snakemake tracks.",
}


def code_files(rule: str) -> list[Path]:
    """The source files that the numbers of a rule depend on, sorted."""
    places = [PACKAGE / name for name in NUMBERS_DEPEND_ON[rule]]
    paths = {path for place in places for path in (place.rglob("*") if place.is_dir() else [place])}
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


@cache
def code_hash(rule: str) -> str:
    """The first 16 hexadecimal digits of a SHA-256 hash over the bytes of these files."""
    digest = hashlib.sha256()
    for path in code_files(rule):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
