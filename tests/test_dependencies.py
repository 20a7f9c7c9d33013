"""Which modules numbers depend on, read from the imports: complete, and nothing without need."""

import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import grimp
import pytest

import ffkv
from ffkv.base import dependencies
from ffkv.base.dependencies import CHANGES_NO_NUMBER, CHANGES_NUMBERS, code_files, code_hash
from ffkv.base.doors import packages
from ffkv.workflow.jobs import STEPS

PACKAGE = Path(ffkv.__file__).parent


@cache
def imports() -> grimp.ImportGraph:
    """All imports of the packages behind doors, as import-linter finds them."""
    return grimp.build_graph(*packages(), exclude_type_checking_imports=True, cache_dir=None)


def module_of(path: Path) -> str:
    place = next(place for name in packages() if path.is_relative_to(place := dependencies._folder(name)))
    parts = path.relative_to(place.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source(module: str) -> Path:
    package, *rest = module.split(".")
    path = dependencies._folder(package).joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def changes_no_number(path: Path) -> bool:
    if not path.is_relative_to(PACKAGE):
        return False
    name = path.relative_to(PACKAGE).as_posix()
    return name not in CHANGES_NUMBERS and any(
        fnmatch(name, each) or name.startswith(f"{each}/") for each in CHANGES_NO_NUMBER
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
                if path.suffix == ".py" and not dependencies._has_steps(path)
                for name in imports().find_modules_directly_imported_by(module_of(path))
            }
            missing = {str(path) for path in needed - files if not changes_no_number(path) and path != own}
            assert not missing


def test_only_steps_and_those_who_start_them_use_what_is_given():
    """What it imports counts for the steps that ask for it. Of another module's imports, it would not count."""
    start = {"ffkv.branches.commands", "ffkv.run.ask"}
    steps = {STEPS[rule].function.split(":")[0] for rule in STEPS}
    assert start < imports().find_modules_that_directly_import("ffkv.branches.given") <= start | steps


def test_what_a_step_asks_for_counts_for_it():
    """Each step of `composition` opens files through the same class."""
    measure, summary = (
        {path.relative_to(PACKAGE.parent).as_posix() for path in code_files(STEPS[f"composition_{name}"].function)}
        for name in ("measure", "summarize")
    )
    assert {
        "ffkv/branches/values/projections.py",
        "ffkv/model/head/head_file.py",
        "ffkv/corpus/corpus_file.py",
    } <= measure
    assert {"ffkv/branches/values/projections.py", "ffkv/activations/trigger_file.py"} & summary == set()


@pytest.mark.parametrize(
    ("rule", "called"),
    [
        ("translation_read", "ffkv.activations.step:sample_prefixes"),
        ("translation_measure", "ffkv.branches.values.project:project"),
    ],
)
def test_a_function_of_another_step_counts_with_all_that_it_uses(rule, called):
    assert set(code_files(called)) < set(code_files(STEPS[rule].function))


def test_a_module_of_steps_that_is_imported_as_a_whole_counts_with_all_that_its_steps_use(tmp_path):
    (tmp_path / "other.py").write_text("from ffkv.branches.composition import measure\nmade = measure\n")
    assert PACKAGE / "branches/values/projections.py" in dependencies._used_by(tmp_path / "other.py", "made")


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
    assert {name for name in patterns if name.startswith("model/")} == {
        "model/anatomy.py"
    }  # it tells what belongs together


def test_every_listed_path_exists(subtests):
    for name in [*CHANGES_NO_NUMBER, *CHANGES_NUMBERS]:
        with subtests.test(name=name):
            assert [*PACKAGE.glob(name)]


def clear() -> None:
    for cached in (code_hash, *(each for each in vars(dependencies).values() if hasattr(each, "cache_clear"))):
        cached.cache_clear()


def hashes() -> dict[str, str]:
    clear()
    return {rule: step.code for rule, step in STEPS.items()}


@pytest.fixture(scope="module")
def edited(tmp_path_factory) -> Callable[..., set[str]]:
    """Says which rules an edit of modules repeats, in a copy of all packages."""
    copy, patch = tmp_path_factory.mktemp("copy"), pytest.MonkeyPatch()
    for package in packages():
        shutil.copytree(dependencies._folder(package), copy / package, ignore=shutil.ignore_patterns("__pycache__"))

    def hashes_of_copy() -> dict[str, str]:
        with patch.context() as patched:
            patched.setattr(dependencies, "_folder", lambda package: copy / package)
            found = hashes()
        clear()
        return found

    before = hashes_of_copy()

    def edit(*names: str) -> set[str]:
        texts = {copy / "ffkv" / name: (copy / "ffkv" / name).read_text() for name in names}
        for path, text in texts.items():
            path.write_text(text + "\n# edited\n")
        after = hashes_of_copy()
        for path, text in texts.items():
            path.write_text(text)
        return {rule for rule in before if before[rule] != after[rule]}

    return edit


def test_an_edit_in_the_report_repeats_reports_alone_and_discards_no_saved_shard(edited):
    reports = {"report", "comparison_measure", "comparison_report"}
    assert edited("run/report/cards.py") == reports
    assert edited("branches/refinement/section.py") == reports  # imported by its name


def test_an_edit_of_one_pass_does_not_repeat_the_other(edited):
    assert edited("activations/triggers.py") == {"triggers"}
    assert edited("activations/states.py") == {"sampled_prefixes", "translation_read"}


def test_an_edit_of_a_summary_repeats_no_measurement(edited):
    repeated = edited("base/intervals.py")
    others = {"annotate_agreement", "comparison_measure", "comparison_report", "report"}  # it judges the paper's claims
    # Their tables have intervals: of each map's divergence, of each memory's contrast, of what graphs keep, of AUCs.
    others |= {
        "translation_fit",
        "translation_average",
        "behaviours_choose",
        "behaviours_graph",
        "behaviours_experts",
        "concepts_measure",
    }
    assert repeated <= {rule for rule in STEPS if rule.endswith("_summarize")} | others
    assert {"keys_summarize", "values_summarize", "refinement_summarize"} <= repeated
    again = {"composition_summarize", "translation_summarize"}  # which makes figure 8 once more
    assert edited("branches/composition/summarize.py") == again


def test_an_edit_of_a_data_file_repeats_what_its_module_decides(edited):
    """Which tensors a model can do without is data. An edit of it may refuse a model, or let it pass."""
    repeated = edited("model/checkpoint/leftovers.toml")
    assert {"unpack", "model", "triggers"} <= repeated and not repeated & {"corpus", "keys_patterns"}


def test_an_edit_of_a_command_or_of_an_export_repeats_nothing(edited):
    names = ("branches/commands.py", "run/export/store.py", "plan/commands.py", "base/files/hdf5.py", "commands.toml")
    assert edited(*names) == set()


def test_the_hash_of_a_step_is_the_same_wherever_its_packages_lie(tmp_path, monkeypatch):
    before = hashes()
    # The last package comes first in the order of paths.
    for place, package in enumerate(sorted(packages(), reverse=True)):
        folder = tmp_path / str(place) / package
        shutil.copytree(dependencies._folder(package), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(dependencies, "_folder", lambda package: next(tmp_path.glob(f"*/{package}")))
    assert hashes() == before
    clear()


def test_a_folder_of_which_another_version_left_its_caches_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "old/__pycache__").mkdir(parents=True)
    (tmp_path / "old.py").touch()
    monkeypatch.setattr(dependencies, "_folder", lambda package: tmp_path)
    assert dependencies._source.__wrapped__("ffkv.old") == tmp_path / "old.py"
