"""Which modules the numbers of each rule depend on.

A change of a listed module repeats the rule, and a saved shard from before the change is not continued. A change of any
other module does neither. The parameter `code` of the rules and the identity of a saved shard both come from this list. A
test compares the list with the imports of the steps.
"""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PASS = (
    "activations/batches.py",
    "activations/packing.py",
    "activations/pass_state.py",
    "activations/resume.py",
    "activations/statistics.py",
    "activations/step.py",
    "activations/top_t.py",
    "activations/trigger_file.py",
    "base/batching.py",
    "corpus/competing.py",
    "corpus/corpus_file.py",
    "corpus/document.py",
    "corpus/encode.py",
    "corpus/rows.py",
    "corpus/sentences.py",
    "corpus/shared_prefixes.py",
    "model/anatomy.py",
    "model/checkpoint",
    "model/discover/find.py",
    "model/experts",
    "model/fairseq",
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
MODEL = ("model",)
TRIGGERS_READ_AGAIN = (
    "activations/batches.py",
    "activations/last_token.py",
    "activations/trigger_file.py",
    "base/batching.py",
    "corpus",
    "branches/keys",
    "base/multiple_tests.py",
    "base/streams.py",
    *MODEL,
)
REPORT = (
    "activations/trigger_file.py",
    "corpus",
    "branches/intervention/tables.py",
    "run/report",
    "run/results",
    *MODEL,
)

# Rule: paths below src/ffkv. A folder means every module in it. Only the expensive rules name single modules of a room that
# an earlier rule depends on as a whole: a change there repeats the earlier rule and, with it, all rules that read its files.
NUMBERS_DEPEND_ON: dict[str, tuple[str, ...]] = {
    "train": ("base/batching.py", "corpus"),
    "model": MODEL,
    "corpus": ("corpus", *MODEL),
    "triggers": ("activations/stages.py", "activations/triggers.py", "model/identities.py", *PASS),
    "merge_triggers": MERGE,
    "sampled_prefixes": (
        "activations/last_token.py",
        "activations/prefix_file.py",
        "activations/prefix_sample.py",
        "activations/states.py",
        "base/streams.py",
        *PASS,
    ),
    "merge_sampled_prefixes": MERGE,
    "keys_patterns": (
        "activations/trigger_file.py",
        "corpus",
        "branches/keys",
        "base/multiple_tests.py",
        "base/streams.py",
    ),
    "keys_removal": TRIGGERS_READ_AGAIN,
    "keys_precision": TRIGGERS_READ_AGAIN,
    "keys_summarize": (
        "activations/trigger_file.py",
        "corpus",
        "base/files/tables.py",
        "base/intervals.py",
        "branches/keys",
        "base/streams.py",
    ),
    "values_project": (
        "activations/trigger_file.py",
        "branches/values/compare.py",
        "branches/values/projections.py",
        "branches/values/step.py",
        *MODEL,
    ),
    "values_summarize": (
        "activations/trigger_file.py",
        "corpus",
        "base/files/tables.py",
        "base/intervals.py",
        "model",
        "base/streams.py",
        "branches/values/step.py",
        "branches/values/summaries.py",
    ),
    "composition_measure": (
        "activations/prefix_file.py",
        "branches/composition/by_prefix.py",
        "branches/composition/step.py",
        "corpus",
        "branches/values/projections.py",
        *MODEL,
    ),
    "composition_summarize": (
        "branches/composition/step.py",
        "branches/composition/summaries.py",
        "base/files/tables.py",
        "base/intervals.py",
        "model",
    ),
    "refinement_measure": (
        "activations/prefix_file.py",
        "branches/refinement/cases.py",
        "branches/refinement/step.py",
        *MODEL,
    ),
    "refinement_summarize": (
        "corpus",
        "base/files/tables.py",
        "base/intervals.py",
        "branches/refinement/cases.py",
        "branches/refinement/changes.py",
        "branches/refinement/step.py",
        "branches/refinement/summaries.py",
        "base/streams.py",
        *MODEL,
    ),
    "intervention_measure": (
        "activations/batches.py",
        "activations/last_token.py",
        "activations/trigger_file.py",
        "base/batching.py",
        "corpus",
        "branches/intervention/by_layer.py",
        "branches/intervention/changes.py",
        "branches/intervention/effects.py",
        "branches/intervention/measure.py",
        "branches/intervention/rerun.py",
        "branches/intervention/sample.py",
        "branches/intervention/significance.py",
        "branches/intervention/step.py",
        "branches/intervention/tables.py",
        "base/multiple_tests.py",
        "base/streams.py",
        "branches/values/projections.py",
        *MODEL,
    ),
    "intervention_summarize": (
        "base/files/tables.py",
        "base/intervals.py",
        "branches/intervention/step.py",
        "branches/intervention/summaries.py",
        "branches/intervention/tables.py",
        "model",
        "base/multiple_tests.py",
        "base/streams.py",
        "branches/values/projections.py",
    ),
    "annotate_agreement": (
        "activations/trigger_file.py",
        "apps/annotation",
        "corpus",
        "base/intervals.py",
        "branches/intervention/tables.py",
        "branches/keys",
        "run/results",
        "base/streams.py",
        *MODEL,
    ),
    "comparison_measure": ("run/comparison", "base/intervals.py", "base/streams.py", *REPORT),
    "comparison_report": ("run/comparison", *REPORT),
    "report": ("base/multiple_tests.py", *REPORT),
}

# Modules that steps import and that change no number, with the reason.
CHANGES_NO_NUMBER: dict[str, str] = {
    "__init__.py": "It holds the version and the names of the public functions.",
    "base/dependencies.py": "It says which modules numbers depend on.",
    "base/errors.py": "An error ends the step.",
    "base/files": "Numbers are stored and read bit by bit. A new format has a new version, which the readers check.",
    "base/hub": "What is read is a commit, which Snakemake tracks. What was fetched is checked against its hash.",
    "base/options.py": "An option carries a setting or a path, which Snakemake tracks.",
    "base/parts.py": "Shards and layer groups change no number. A test runs the same run with other numbers of them.",
    "base/system": "It asks the operating system: disks, memory, signals, processes.",
    "base/process": "It shows progress, handles signals, and chooses threads and the device.",
    "base/terminal.py": "It prints.",
    "base/settings": "A setting reaches a step by its value, which Snakemake tracks.",
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
