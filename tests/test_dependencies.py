"""The list of modules that numbers depend on: complete by the imports of the steps, and nothing in it for nothing."""

import ast
from functools import cache
from pathlib import Path

import grimp
import pytest

from ffkv.base import dependencies
from ffkv.base.dependencies import CHANGES_NO_NUMBER, NUMBERS_DEPEND_ON, PACKAGE, code_files, code_hash

STEPS = {
    "train": "corpus.embedded.step:train",
    "model": "model.step:prove",
    "corpus": "corpus.step:encode_corpus",
    "triggers": "activations.step:find_triggers",
    "merge_triggers": "activations.step:merge_triggers",
    "sampled_prefixes": "activations.step:sample_prefixes",
    "merge_sampled_prefixes": "activations.step:merge_sampled_prefixes",
    "keys_patterns": "branches.keys.step:find_patterns",
    "keys_removal": "branches.keys.step:remove_tokens",
    "keys_precision": "branches.keys.step:measure_precision",
    "keys_summarize": "branches.keys.step:summarize_keys",
    "values_project": "branches.values.step:project_values",
    "values_summarize": "branches.values.step:summarize_values",
    "composition_measure": "branches.composition.step:measure_composition",
    "composition_summarize": "branches.composition.step:summarize_composition",
    "refinement_measure": "branches.refinement.step:measure_refinement",
    "refinement_summarize": "branches.refinement.step:summarize_refinement",
    "intervention_measure": "branches.intervention.step:measure_interventions",
    "intervention_summarize": "branches.intervention.step:summarize_interventions",
    "annotate_agreement": "apps.annotation.step:compare_annotators",
    "report": "run.report.step:write_report",
    "comparison_measure": "run.comparison.step:compare_runs",
    "comparison_report": "run.comparison.page:write_page",
}


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("ffkv", exclude_type_checking_imports=True, cache_dir=None)


def source(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported_by(statement: ast.AST) -> dict[str, str]:
    """The names that `from ffkv... import` gives, and the modules that they come from."""
    names = {}
    if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("ffkv"):
        for name in statement.names:
            module = f"{statement.module}.{name.name}"
            names[name.asname or name.name] = module if module in imports().modules else str(statement.module)
    return names


def used_by(module: str, function: str) -> set[str]:
    """The modules of ffkv that a function uses, by itself and by what it calls in its own module."""
    statements = ast.parse(source(module).read_text()).body
    imported = {name: origin for statement in statements for name, origin in imported_by(statement).items()}
    defined = {}
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            defined[statement.name] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    assert function in defined or function in imported, f"{module} has no {function}"
    used, waiting, seen = set(), [function], set()
    while waiting:
        name = waiting.pop()
        if name in imported:
            used.add(imported[name])
        if name in defined and name not in seen:
            seen.add(name)
            for node in ast.walk(defined[name]):
                waiting += [node.id] if isinstance(node, ast.Name) else []
                used |= set(imported_by(node).values())
    return used


def below(path: Path, names) -> bool:
    """Whether a path is one of the named files, or in one of the named folders."""
    return any(path == PACKAGE / name or PACKAGE / name in path.parents for name in names)


@cache
def needed(rule: str) -> frozenset[Path]:
    """The files of all modules that the step of a rule imports, directly or through others.

    What only modules import that change no number changes none either.
    """
    module, function = f"ffkv.{STEPS[rule]}".split(":")
    files, waiting = {source(module)}, list(used_by(module, function))
    while waiting:
        name = waiting.pop()
        if source(name) not in files:
            files.add(source(name))
            if not below(source(name), CHANGES_NO_NUMBER):
                waiting += imports().find_modules_directly_imported_by(name)
    return frozenset(files)


def test_every_rule_has_a_list():
    assert NUMBERS_DEPEND_ON.keys() == STEPS.keys()


@pytest.mark.parametrize("rule", STEPS)
def test_every_module_that_a_step_imports_is_listed_or_changes_no_number(rule):
    missing = needed(rule) - set(code_files(rule))
    missing = {str(path.relative_to(PACKAGE)) for path in missing if not below(path, CHANGES_NO_NUMBER)}
    assert not missing, f"{rule}: add to NUMBERS_DEPEND_ON, or to CHANGES_NO_NUMBER with a reason: {sorted(missing)}"


@pytest.mark.parametrize("rule", STEPS)
def test_nothing_is_listed_that_the_step_does_not_import(rule):
    unused = [name for name in NUMBERS_DEPEND_ON[rule] if not any(below(path, [name]) for path in needed(rule))]
    assert not unused, f"{rule}: remove from NUMBERS_DEPEND_ON: {unused}"


@pytest.mark.parametrize(
    "name", sorted({*CHANGES_NO_NUMBER, *(name for names in NUMBERS_DEPEND_ON.values() for name in names)})
)
def test_every_listed_path_exists(name):
    assert (PACKAGE / name).exists()


def edited(tmp_path, monkeypatch, name: str) -> set[str]:
    """The rules that an edit of a module repeats."""
    copy = tmp_path / "ffkv"
    for path in PACKAGE.rglob("*.py"):
        target = copy / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    monkeypatch.setattr(dependencies, "PACKAGE", copy)
    code_hash.cache_clear()
    before = {rule: code_hash(rule) for rule in NUMBERS_DEPEND_ON}
    (copy / name).write_text((copy / name).read_text() + "\n# edited\n")
    code_hash.cache_clear()
    after = {rule: code_hash(rule) for rule in NUMBERS_DEPEND_ON}
    code_hash.cache_clear()
    return {rule for rule in before if before[rule] != after[rule]}


def test_an_edit_in_the_report_repeats_reports_alone_and_discards_no_saved_shard(tmp_path, monkeypatch):
    assert edited(tmp_path, monkeypatch, "run/report/cards.py") == {"report", "comparison_measure", "comparison_report"}


def test_an_edit_of_one_pass_does_not_repeat_the_other(tmp_path, monkeypatch):
    assert edited(tmp_path, monkeypatch, "activations/triggers.py") == {"triggers"}


def test_an_edit_of_a_summary_repeats_no_measurement(tmp_path, monkeypatch):
    assert edited(tmp_path, monkeypatch, "base/intervals.py") == {
        "keys_summarize",
        "values_summarize",
        "refinement_summarize",
        "composition_summarize",
        "intervention_summarize",
        "comparison_measure",
        "annotate_agreement",
    }
