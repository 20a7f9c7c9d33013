"""What the trial's costs become for a whole run, by hand."""

import pytest
from plan.hand import known

from ffkv.base.settings import Settings
from ffkv.base.system.memory import free_memory
from ffkv.plan import step
from ffkv.plan.growth import measure_amounts
from ffkv.plan.known import as_trained
from ffkv.plan.shape import Shape
from ffkv.plan.step import Row, _row, find_warnings
from ffkv.plan.table import in_bytes
from ffkv.plan.text import Split
from ffkv.plan.trial import Measured, _small_settings
from ffkv.workflow.jobs import Job

SHAPE = Shape("Hand", (8, 16), 4, 10, 400, 256, 80, "float32")
SPLITS = {"train": Split(1000, 100, 10, 5000, 2, ""), "validation": Split(300, 30, 3, 1500, 1, "")}
LIBRARIES = {"tables": (1.0, 1e8), "head": (2.0, 2e8), "model": (3.0, 4e8)}


def amounts(signed=False, **settings):
    settings = Settings(**{"model": {"checkpoint": "somewhere"}, "prefixes": {"count": 50}, **settings})
    return measure_amounts(known(settings, SHAPE._replace(signed=signed), SPLITS))


def job(rule, number=0, inputs=()):
    return Job(rule, "mine", 1, f"ffkv {rule}", list(inputs), [f"{rule}/{number}"], False)


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    monkeypatch.setattr(step, "import_libraries", lambda: LIBRARIES)


def row(rule, measured, jobs=1, cores=1, **small):
    """The row of a rule; its trial had as much to do as the run, but for what `small` says."""
    tried = amounts()[rule]._replace(**small), measured
    return _row([job(rule, number) for number in range(jobs)], amounts()[rule], tried, cores)


def test_bytes_of_described_files():
    """Per trigger six numbers and a sign; per memory counts and 13 bins. Negative triggers add as many, but no bins."""
    positive = 24 * (50 * 25 + 4 + 8 + 8 + 4 + 12 * 8)
    stored = amounts()["triggers"].stored
    assert stored == pytest.approx(positive, rel=0.02)
    negative = amounts(signed=True)["triggers"].stored
    assert negative == pytest.approx(positive + 24 * (50 * 25 + 4 + 8 + 4), rel=0.02)
    assert amounts(signed=True, triggers={"negative": False})["triggers"].stored == stored
    assert (
        amounts(shards=3)["triggers"].stored == 4 * stored
    )  # until they are merged; a single one becomes the merged file
    y, o, m = 2 * 50 * 4, 2 * 50 * 4, 50 * 24
    sampled = amounts()["sampled_prefixes"].stored
    assert sampled >= 4 * (y + o + m)
    assert amounts(prefixes={"count": 50, "extra_states": ["x"]})["sampled_prefixes"].stored > sampled


def test_states_are_planned_as_they_are_stored(monkeypatch):
    """Of experts that a token is not sent to nothing is left; no state is in memory if a block is too large."""

    def planned(**shape):
        shape = SHAPE._replace(**shape)
        return measure_amounts(known(Settings(model={"checkpoint": "somewhere"}), shape, SPLITS))["sampled_prefixes"]

    dense, few = planned(), planned(active=0.25)
    m = 270 * 2 * 16 * 4  # whole chunks, as wide as the larger layer
    assert dense.stored - few.stored == pytest.approx(0.75 * m, rel=0.01)
    monkeypatch.setattr("ffkv.activations.prefix_file.IN_MEMORY", 1000)
    assert dense.memory - planned().memory == pytest.approx(270 * 4 * (2 * 16 + 2 * 2 * 4 + 3), rel=0.02)


def test_no_work_of_the_model_step_grows_with_the_square_of_a_layer():
    """Values are columns of weights: nothing is multiplied with unit vectors."""
    settings = Settings(model={"checkpoint": "somewhere"})
    wide, narrow = (known(settings, SHAPE._replace(memories=sizes), SPLITS) for sizes in ((80, 160), (8, 16)))
    assert measure_amounts(wide)["model"].work == measure_amounts(narrow)["model"].work


def test_more_prefixes_than_there_are_cannot_be_sampled():
    assert amounts(prefixes={"count": 10**6})["composition_measure"].stored == 270 * 2


def test_work_grows_and_the_rest_stays():
    """Four of five seconds are work, and the run has ten times as much of it: 3 of imports + 1 + 40."""
    found = row("triggers", [Measured(5.0, 4.0, 1e8)], work=amounts()["triggers"].work / 10)
    assert found.seconds == pytest.approx(44)


def test_a_job_without_layers_shows_what_does_not_grow():
    measured = [Measured(1.0, None, 0.0), Measured(1.5, None, 0.0), Measured(1.7, None, 0.0)]
    found = row("composition_measure", measured, work=amounts()["composition_measure"].work / 10)
    assert found.seconds == pytest.approx(2 + 1 + 12)


def test_what_a_job_without_layers_takes_with_an_open_bar_does_not_grow():
    """Of 1.4 seconds with an open bar, 0.4 do not grow; 0.6 are around it. Ten times as much work: 2 + 0.6 + 0.4 + 10."""
    measured = [Measured(1.0, 0.4, 0.0), Measured(2.0, 1.4, 0.0)]
    found = row("composition_measure", measured, work=amounts()["composition_measure"].work / 10)
    assert found.seconds == pytest.approx(13)


def test_what_each_job_goes_through_grows_with_the_corpus():
    """0.6 seconds are around the bars, 0.4 go through twice as many sentences, 1 is work: 1 of imports + 0.6 + 0.8 + 1."""
    measured = [Measured(1.0, 0.4, 0.0), Measured(2.0, 1.4, 0.0)]
    found = row("keys_patterns", measured, once=amounts()["keys_patterns"].once / 2)
    assert found.seconds == pytest.approx(3.4)


def test_work_is_shared_by_jobs_that_run_at_the_same_time():
    found = row("values_project", [Measured(1.0, 0.0, 0.0), Measured(7.0, 6.0, 0.0)], jobs=3, cores=2)
    assert (found.jobs, found.at_once) == (3, 2)
    assert found.seconds == pytest.approx(2 * (2 + 1 + 2))


def test_memory_and_disk_grow_by_what_the_descriptions_tell():
    """The files of the trial, half of which compression leaves, become ten times as large."""
    whole = amounts()["sampled_prefixes"]
    measured = [Measured(5.0, 4.0, 1e8, 0.05 * whole.stored)]
    found = row("sampled_prefixes", measured, memory=whole.memory - 1e9, stored=0.1 * whole.stored)
    assert found.memory == pytest.approx(4e8 + 1e8 + 1e9)
    assert found.written == pytest.approx(0.5 * whole.stored)


def test_what_does_not_suffice_is_a_warning():
    rows = [Row("mine", "triggers", 2, False, at_once=2, written=5e9, memory=3e9)]
    total = {"written": 5e9, "disk_left": 1e10, "memory_left": 1e10}
    assert find_warnings(rows, total) == []
    assert find_warnings(rows, {**total, "disk_left": 4e9})[0].startswith(
        "Not enough disk space: the remaining files need up to 5 GB, but only 4 GB is free in results/."
    )
    assert find_warnings(rows, {**total, "memory_left": 7e9}) == []
    (together,) = find_warnings(rows, {**total, "memory_left": 4e9})
    assert together.startswith(
        "Not enough memory: 2 x triggers (mine) at the same time need 3 GB per job, but only 4 GB is free."
    )


def test_the_limit_of_a_control_group_counts(tmp_path):
    for name, text in {"max": "6000000", "current": "5000000", "stat": "anon 1\ninactive_file 500000"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 1_500_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(tmp_path) > 1_500_000


@pytest.mark.parametrize(("size", "text"), [(1200, "1.2 kB"), (1.2e9, "1.2 GB"), (3e12, "3 TB")])
def test_sizes_for_a_person(size, text):
    assert in_bytes(size) == text


def training_jobs(done: bool) -> list[Job]:
    made = ["results/long/checkpoint", "results/long/training.csv"]
    return [
        Job("train", "long", 1, "", [], made, done),
        Job("model", "early", 1, "", [], ["results/early/model"], False),
    ]


@pytest.mark.parametrize("checkpoint", ["results/long/checkpoint", "results/long/checkpoint/steps/25"])
def test_a_checkpoint_that_is_not_trained_yet_is_planned_as_the_model_that_will_be(checkpoint):
    runs = {
        "long": Settings.model_validate({"embedded": {"layers": 2, "keep_steps": [25]}}),
        "early": Settings.model_validate({"model": {"checkpoint": checkpoint}, "prefixes": {"count": 77}}),
    }
    planned = as_trained(runs["early"], runs, training_jobs(done=False))
    assert (planned.model.checkpoint, planned.embedded, planned.prefixes.count) == (
        "embedded",
        runs["long"].embedded,
        77,
    )
    assert as_trained(runs["early"], runs, training_jobs(done=True)) is runs["early"]
    assert as_trained(runs["long"], runs, training_jobs(done=False)) is runs["long"]


def test_the_trial_of_a_run_that_keeps_training_steps_keeps_none(tmp_path):
    """It trains fewer steps than those that are to be kept, and a step after the last one is refused."""
    settings = Settings.model_validate({"embedded": {"steps": 800, "keep_steps": [0, 300]}})
    small = _small_settings(known(settings, SHAPE, SPLITS, ["one two three"] * 20), tmp_path, trained=False)
    assert small.embedded.steps < 300 and small.contradictions() == []


def test_the_trial_of_a_run_with_a_control_draws_none(tmp_path):
    """The other run is not in the trial."""
    settings = Settings.model_validate({"report": {"control": "another"}})
    assert (
        _small_settings(known(settings, SHAPE, SPLITS, ["one two"] * 20), tmp_path, trained=False).report.control == ""
    )
