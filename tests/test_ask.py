"""A step of a finished run, asked from Python: it gives what its rule wrote, and refuses what it does not know."""

import shutil

import pandas as pd
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.columns import Table
from ffkv.base.steps import Part, Work
from ffkv.branches.commands import has_parts, results
from ffkv.branches.given import Given
from ffkv.branches.refinement.measure import measure_refinement
from ffkv.branches.refinement.summarize import summarize_refinement
from ffkv.branches.registry import BRANCHES

STEPS = {f"{branch.name} {key}": step for branch in BRANCHES.values() for key, step in branch.steps.items()}
CPU = Work("cpu", batch_tokens=1024)


@pytest.fixture
def run(tiny):
    return ffkv.open(tiny / "results/tiny")


@pytest.fixture
def files(run):
    """What steps of refinement read."""
    names = {"model": "model", "prefixes": "sampled_prefixes.h5", "validation": "corpus/validation.h5"}
    return {name: run.folder / path for name, path in names.items()}


# The run `tiny` has float32, no behaviours, no concepts, no routing and no dictionary. What two steps of "translation" return is no table.
OF_TINY = [
    name
    for name in STEPS
    if name not in ("keys precision", "translation read", "translation derive")
    and not name.startswith(("behaviours", "concepts", "routing", "reconstruction"))
]


@pytest.mark.parametrize("name", OF_TINY)
def test_a_step_gives_what_its_rule_wrote(run, name):
    step, group = STEPS[name], 1 if has_parts(STEPS[name]) else None
    for each, made in results(step, ffkv.step(name, run, group=group, work=CPU)):
        if isinstance(each, Table):
            path = run.folder / each.path.format(group=group)
            written = tables.read(path)
            assert len(made) == len(written) and (len(written) or each.name == "sign_cases")  # no gate has a sign
            if path.suffix == ".parquet":
                assert made.attrs == written.attrs
                pd.testing.assert_frame_equal(made, written, rtol=1e-5, atol=1e-6)
            for column in written.select_dtypes("number"):
                expected = pd.to_numeric(written[column])
                pd.testing.assert_series_equal(made[column], expected, check_dtype=False, rtol=1e-5, atol=1e-6)
            for column in written.select_dtypes(["str", "object"]) if path.suffix == ".csv" else ():
                assert made[column].fillna("").astype(str).tolist() == written[column].fillna("").astype(str).tolist()


def test_states_of_a_shard_are_written_where_they_are_asked_for(run, tmp_path):
    ffkv.step("translation read", run, shard=1, work=CPU)(tmp_path / "states.h5")
    assert (tmp_path / "states.h5").exists()


def test_sections_and_files_replace_those_of_the_run(run, tmp_path):
    few = ffkv.settings.Keys(per_layer=2, pattern_triggers=20, background_prefixes=100)
    assert ffkv.step("keys patterns", run, group=0, keys=few)[1]["memory"].nunique() <= 4
    shutil.copy(run.folder / "triggers.h5", tmp_path / "other.h5")
    _, expected = ffkv.step("values project", str(run.folder), group=0, work=CPU)
    for path in (tmp_path / "other.h5", str(tmp_path / "other.h5")):
        _, found = ffkv.step("values project", run, group="0", work=CPU, files={"triggers": path})
        pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(UserError, match=r"nothing\.h5 does not exist"):
        ffkv.step("values project", run, group=0, work=CPU, files={"triggers": tmp_path / "nothing.h5"})


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("refinement", {}, r"no step 'refinement'.*Choose one of: keys patterns, .*, refinement measure, "),
        ("refinement measure", {}, r"works on one group at a time. Choose one of: group=0, group=1\."),
        ("refinement measure", {"group": 2}, r"no group '2'. Choose one of: 0, 1\."),
        ("refinement measure", {"group": 0, "shard": 0}, r"takes no argument 'shard'"),
        ("refinement summarize", {"group": 0}, r"takes no argument 'group'"),
        ("refinement measure", {"group": 0, "seed": 1}, r"no argument 'seed'. Choose one of: group, work, files\."),
        (
            "composition measure",
            {"group": 0, "mass": 0.5},
            r"no argument 'mass'. .*: group, composition, work, files\.",
        ),
        ("composition measure", {"group": 0, "composition": 0.5}, r"Give such as ffkv\.settings\.Composition\(\)"),
        ("keys patterns", {"group": 0, "seed": "one"}, r"seed is 'one'. Give such as 0\."),
        ("values project", {"group": 0, "files": {"maps": "x"}}, r"no file that .* 'maps'. Choose .*: model, values"),
        ("behaviours read", {"shard": 0}, r"works on one behaviour at a time. .*: none, as the run has none\."),
        ("behaviours summarize", {}, r"reads behaviours/.* of each behaviour, and tiny has no behaviours\."),
        ("values project", {"group": "2"}, r"no group '2'. Choose one of: 0, 1\."),
        ("values project", {"group": 0, "work": "cpu"}, r"takes work such as ffkv\.Work\('cpu'\)"),
        ("values project", {"group": 0, "files": "triggers.h5"}, r"and files such as \{'triggers': path\}"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(run, name, arguments, message):
    with pytest.raises(UserError, match=message):
        ffkv.step(name, run, **arguments)


def test_a_table_in_memory_stands_for_its_file(run, files):
    groups = [measure_refinement(Given(Work("cpu", part=Part(group, 2)), **files)) for group in range(2)]
    paths = [run.folder / f"refinement/by_prefix/{group}.parquet" for group in range(2)]
    of_files, in_memory = (summarize_refinement(Given(**files, by_prefix=each)) for each in (paths, groups))
    for name, table in of_files.items():
        pd.testing.assert_frame_equal(in_memory[name], table)


def test_files_are_closed_also_after_an_error(files):
    given = Given(**files)
    with pytest.raises(ZeroDivisionError), given:
        assert len(given.sampled("sentence")) == 200 and given._sampled
        _ = 1 / 0
    assert not given._sampled  # h5py's word for closed
