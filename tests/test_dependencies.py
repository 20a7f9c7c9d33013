"""Which modules numbers depend on, read from the imports: complete, and nothing without need."""

from functools import cache
from pathlib import Path

import grimp
import pytest

from ffkv.base import dependencies
from ffkv.base.dependencies import CHANGES_NO_NUMBER, CHANGES_NUMBERS, PACKAGE, code_files, code_hash
from ffkv.workflow.steps import STEPS


@cache
def imports() -> grimp.ImportGraph:
    """All imports of the package, as import-linter finds them."""
    return grimp.build_graph("ffkv", exclude_type_checking_imports=True, cache_dir=None)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def changes_no_number(path: Path) -> bool:
    name = path.relative_to(PACKAGE).as_posix()
    return name not in CHANGES_NUMBERS and any(
        name == each or name.startswith(f"{each}/") for each in CHANGES_NO_NUMBER
    )


def test_what_a_module_of_the_list_imports_is_on_the_list_or_changes_no_number(subtests):
    """Another reader of imports agrees. Of modules with steps, only what the called functions use counts."""
    for rule in STEPS:
        with subtests.test(rule=rule):
            step = STEPS[rule]
            files = set(code_files(step.function, step.also))
            own = source(step.function.split(":")[0])
            assert own in files
            needed = {
                source(name)
                for path in files - {own}
                if path.suffix == ".py" and path.name != "step.py"
                for name in imports().find_modules_directly_imported_by(module_of(path))
            }
            missing = {str(path) for path in needed - files if not changes_no_number(path) and path != own}
            assert not missing


@pytest.mark.parametrize(
    ("rule", "called"),
    [
        ("translation_read", "ffkv.activations.step:sample_prefixes"),
        ("translation_measure", "ffkv.branches.values.step:project"),
    ],
)
def test_a_function_of_another_step_counts_with_all_that_it_uses(rule, called):
    assert set(code_files(called)) < set(code_files(STEPS[rule].function))


def test_the_function_of_a_step_exists(subtests):
    for rule in STEPS:
        with subtests.test(rule=rule):
            module, name = STEPS[rule].function.split(":")
            assert f"def {name}(" in source(module).read_text()


def test_of_a_module_with_several_steps_only_what_a_step_uses_counts():
    patterns, summary = (
        {path.relative_to(PACKAGE).as_posix() for path in code_files(STEPS[rule].function)}
        for rule in ("keys_patterns", "keys_summarize")
    )
    assert "branches/keys/topics.py" in patterns - summary
    assert "base/intervals.py" in summary - patterns
    assert not any(name.startswith("model/") for name in patterns)


def test_every_listed_path_exists(subtests):
    for name in [*CHANGES_NO_NUMBER, *CHANGES_NUMBERS]:
        with subtests.test(name=name):
            assert (PACKAGE / name).exists()


def edited(tmp_path, monkeypatch, name: str) -> set[str]:
    """The rules that an edit of a module repeats."""
    copy = tmp_path / "ffkv"
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = copy / path.relative_to(PACKAGE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    monkeypatch.setattr(dependencies, "PACKAGE", copy)
    before = hashes()
    (copy / name).write_text((copy / name).read_text() + "\n# edited\n")
    after = hashes()
    code_hash.cache_clear()
    return {rule for rule in before if before[rule] != after[rule]}


def hashes() -> dict[str, str]:
    for cached in (code_hash, dependencies._imports, dependencies._content, dependencies._statements):
        cached.cache_clear()
    return {rule: step.code for rule, step in STEPS.items()}


def test_an_edit_in_the_report_repeats_reports_alone_and_discards_no_saved_shard(tmp_path, monkeypatch):
    reports = {"report", "comparison_measure", "comparison_report"}
    assert edited(tmp_path, monkeypatch, "run/report/cards.py") == reports
    assert edited(tmp_path, monkeypatch, "run/report/section_refinement.py") == reports  # imported by its name


def test_an_edit_of_one_pass_does_not_repeat_the_other(tmp_path, monkeypatch):
    assert edited(tmp_path, monkeypatch, "activations/triggers.py") == {"triggers"}
    assert edited(tmp_path, monkeypatch, "activations/states.py") == {"sampled_prefixes", "translation_read"}


def test_an_edit_of_a_summary_repeats_no_measurement(tmp_path, monkeypatch):
    repeated = edited(tmp_path, monkeypatch, "base/intervals.py")
    others = {"annotate_agreement", "comparison_measure", "comparison_report", "report"}  # it judges the paper's claims
    others |= {"translation_fit"}  # its table has an interval of each map's divergence
    assert repeated <= {rule for rule in STEPS if rule.endswith("_summarize")} | others
    assert {"keys_summarize", "values_summarize", "refinement_summarize"} <= repeated


def test_an_edit_of_a_command_or_of_an_export_repeats_nothing(tmp_path, monkeypatch):
    for name in ("branches/commands.py", "apps/export/delphi.py", "plan/commands.py", "base/files/hdf5.py"):
        assert edited(tmp_path, monkeypatch, name) == set()
