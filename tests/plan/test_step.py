"""What the trial's costs become for a whole run, by hand; the plan as text; which rules the profile for SLURM gives too little."""

import pytest
from plan.hand import SHAPE, TEXT, facts, job

from ffkv.branches.settings import Settings
from ffkv.plan import step, trial
from ffkv.plan.facts import RunFacts, as_trained
from ffkv.plan.step import as_text, find_savings, find_warnings, measure_amounts, plan_rules, tell_shortages
from ffkv.plan.trial import Cost, _small_settings
from ffkv.workflow.jobs import Job

LIBRARIES = {"tables": (1.0, 1e8), "head": (2.0, 2e8), "model": (3.0, 4e8)}


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    monkeypatch.setattr(step, "import_libraries", lambda: LIBRARIES)


def row(rule: str, *costs: Cost, jobs: int = 1, cores: int = 1, times: float = 1.0, **changes):
    """The row of a rule that has `times` as much to do as in the trial."""
    run = facts(**changes)._replace(jobs={rule: [job(rule, number) for number in range(jobs)]})
    small = run._replace(text={name: split.times(1 / times, "") for name, split in TEXT.items()})
    (found,) = plan_rules(run, (small, {rule: costs}), cores)
    return found


def test_work_grows_and_the_rest_stays():
    """Four of five seconds are work, and the run has ten times as much of it: 3 of imports + 1 + 40."""
    assert row("triggers", Cost(5.0, 4.0, 1e8, 0.0), times=10)["seconds"] == pytest.approx(44)


def test_what_a_job_without_layers_takes_does_not_grow(monkeypatch):
    """Of 1.4 seconds with an open bar, 0.4 do not grow; 0.6 are around it. Ten times as much work: 2 + 0.6 + 0.4 + 10."""
    run = facts()._replace(jobs={"composition_measure": [job("composition_measure")]})
    small = facts(prefixes={"count": 5})
    costs = [Cost(1.0, 0.4, 0.0, 0.0), Cost(2.0, 1.4, 0.0, 0.0)]
    (found,) = plan_rules(run, (small, {"composition_measure": costs}), 1)
    assert found["seconds"] == pytest.approx(13)


def test_a_rule_without_work_takes_as_long_as_in_the_trial():
    assert row("composition_summarize", Cost(1.5, 1.5, 0.0, 0.0), times=100)["seconds"] == pytest.approx(2.5)


def test_a_checkpoint_that_takes_long_to_read_is_read_by_each_job_of_the_model():
    run = facts()._replace(jobs={"triggers": [job("triggers")], "report": [job("report")]}, loading=7.0)
    rows = plan_rules(run, (facts(), {"triggers": [Cost(1, 1, 0, 0)], "report": [Cost(1, 1, 0, 0)]}), 1)
    assert [each["seconds"] for each in rows] == pytest.approx([3 + 1 + 7, 1 + 1])


def test_each_job_of_the_model_reads_the_weights():
    """Two jobs read 4 GB each, at 1 GB per second."""
    shape = SHAPE._replace(parameters=10**9)
    assert row("triggers", Cost(1, 1, 0, 0), jobs=2, shape=shape)["seconds"] == pytest.approx(2 * (3 + 4) + 1)


def test_a_gpu_takes_as_long_as_its_operations_take(monkeypatch):
    """Layer outputs of 50 prefixes through a head of 40 weights in 2 layers. Other rules take as long as without a GPU."""
    jobs = {rule: [job(rule)] for rule in ("composition_measure", "keys_patterns")}
    costs = {rule: [Cost(9.0, 8.0, 0.0, 0.0)] for rule in jobs}
    run, cpu = facts()._replace(jobs=jobs), facts(model={"checkpoint": "somewhere", "device": "cpu"})
    on_gpu, tables = plan_rules(run, (run, costs), 4, gpu=1000.0)
    assert on_gpu["operations"] == 2 * 50 * 2 * 40
    assert on_gpu["seconds"] == pytest.approx(2 + 1 + 8) and on_gpu["at_once"] == 1
    assert tables == plan_rules(run, (run, costs), 4)[1] and tables["operations"] == 0
    run = cpu._replace(jobs=jobs)
    assert plan_rules(run, (run, costs), 4, gpu=1.0) == plan_rules(run, (run, costs), 4)


def test_a_gguf_file_is_unpacked_once_and_later_jobs_do_not_read_it():
    """The copy has 4 bytes per parameter, of which the file has one. Imports 3, what is beside the weights 7, weights 9."""
    jobs = {"unpack": [job("unpack")], "model": [job("model")]}
    run = facts()._replace(jobs=jobs, loading=7.0, unpacking=9.0, packed=400)
    unpack, model = plan_rules(run, (run, {"model": [Cost(1, 1, 0, 0)]}), 1)
    assert (unpack["seconds"], model["seconds"]) == (pytest.approx(3 + 7 + 9), pytest.approx(3 + 1))
    assert (unpack["written"], unpack["memory"]) == (4 * 400, 4e8 + 400)


def test_work_is_shared_by_jobs_that_run_at_the_same_time():
    found = row("values_project", Cost(1.0, 0.0, 0.0, 0.0), Cost(7.0, 6.0, 0.0, 0.0), jobs=3, cores=2)
    assert (found["jobs"], found["at_once"]) == (3, 2)
    assert found["seconds"] == pytest.approx(2 * (2 + 1 + 2))


def test_what_is_done_takes_nothing():
    run = facts()._replace(jobs={"model": [job("model", done=True)], "triggers": [job("triggers")]})
    done, left = plan_rules(run, (facts(), {"model": [Cost(1, 1, 0, 0)], "triggers": [Cost(1, 1, 0, 0)]}), 1)
    assert done == {"rule": "model", "jobs": 0, "done": True}
    assert not left["done"]


def test_memory_and_disk_grow():
    """Files ten times as large; the process, its peak in the trial, and the prefixes that it holds, too."""
    run = facts()._replace(jobs={"sampled_prefixes": [job("sampled_prefixes")]})
    small = facts(prefixes={"count": 5})
    (found,) = plan_rules(run, (small, {"sampled_prefixes": [Cost(1.0, 1.0, 1e8, 3000.0)]}), 1)
    assert found["written"] == pytest.approx(30_000)
    assert found["memory"] == pytest.approx(4e8 + 1e8 + 45 * (24 + 16) * 4)


def planned(**settings) -> tuple[RunFacts, tuple]:
    """A run of which everything is left to do, and a trial in which each rule worked for ten seconds."""
    rules = ("triggers", "keys_removal", "intervention_measure")
    run = facts(**settings)._replace(jobs={rule: [job(rule)] for rule in rules})
    return run, (run, {rule: [Cost(10.0, 10.0, 0.0, 0.0)] for rule in rules})


def test_the_settings_that_save_most_time_are_named():
    """A tenth of the triggers of each key, and then a tenth of the text."""
    run, (small, costs) = planned(corpus={"dataset": "files", "train": ["text.txt"]}, keys={"removal_triggers": 50})
    costs |= {"keys_removal": [Cost(1000.0, 1000.0, 0.0, 0.0)], "triggers": [Cost(500.0, 500.0, 0.0, 0.0)]}
    first, second = find_savings({"mine": run}, {"mine": (small, costs)}, 1)
    assert (first["setting"], first["instead_of"], first["value"]) == ("keys.removal_triggers", 50, 5)
    less = run._replace(settings=facts(keys={"removal_triggers": 5}).settings)
    whole, part = (measure_amounts(each)["keys_removal"][0] for each in (run, less))
    assert first["seconds"] == pytest.approx(1000 * (1 - part / whole))
    assert (second["setting"], second["instead_of"], second["value"]) == ("corpus.limit", 0, 2)
    assert second["seconds"] > 0.7 * 500


def test_a_run_with_a_behaviour_has_a_plan():
    """Behaviours are a mapping of sections, whose samples no saving names."""
    run, tried = planned(behaviours={"agreement": {"prompts": "agreement.jsonl"}})
    assert all(not each["setting"].startswith("behaviours") for each in find_savings({"mine": run}, {"mine": tried}, 1))


def test_a_trial_finds_the_files_of_behaviours_and_concepts(tmp_path, monkeypatch):
    """Their paths begin where the plan was asked for; its jobs run in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    labels = {
        "mine": {"labels": "labels.csv"},
        "theirs": {"labels": "package:sae_probes/*"},
        "rules": {"rules": "text"},
    }
    run = facts(
        behaviours={"agreement": {"prompts": "here/agreement.jsonl"}}, concepts=labels, translation={"lens": "l.pt"}
    )
    small = _small_settings(run, tmp_path)
    assert small.translation.lens == ""  # of the run's own model, which is not that of the trial
    assert small.behaviours["agreement"].prompts == str(tmp_path / "here/agreement.jsonl")
    found = [each.labels for each in small.concepts.values()]
    assert found == [str(tmp_path / "labels.csv"), "package:sae_probes/*", ""]


def test_a_setting_of_several_runs_is_named_once():
    run, (small, costs) = planned()
    costs["intervention_measure"] = [Cost(1000.0, 1000.0, 0.0, 0.0)]
    runs = dict.fromkeys(("one", "two"), run)
    (alone, *_), (both, *_) = (
        find_savings(some, dict.fromkeys(some, (small, costs)), 1) for some in ({"one": run}, runs)
    )
    assert both == {**alone, "seconds": pytest.approx(2 * alone["seconds"])}


def test_a_control_has_less_text_and_smaller_samples_and_shares_the_trial_of_its_run(monkeypatch):
    """It reads 3000 of 9000 sentences. Imports take 3 seconds."""
    run, (_, costs) = planned()
    run = run._replace(text={**TEXT, "train": TEXT["train"].times(90, "counted")})
    tried = run, costs
    runs = {"mine": run, "mine-untrained": step._control("mine", run, run.jobs)}
    measured = []
    monkeypatch.setattr(step, "measure_trial", lambda each, cores: measured.append(each) or tried)
    assert step._try_out(runs, 1) == dict.fromkeys(runs, tried) and measured == [run]
    own, control = ({row["rule"]: row["seconds"] for row in plan_rules(each, tried, 1)} for each in runs.values())
    assert (own["triggers"], control["triggers"]) == (pytest.approx(3 + 10), pytest.approx(3 + 10 / 3))
    assert (
        control["keys_removal"] < own["keys_removal"] and control["intervention_measure"] < own["intervention_measure"]
    )


def test_a_setting_that_saves_time_saves_that_of_the_control_too():
    """It is a setting of the run: that of the control follows."""
    run, (small, costs) = planned()
    costs["intervention_measure"] = [Cost(1000.0, 1000.0, 0.0, 0.0)]
    both = {"mine": run, "mine-untrained": step._control("mine", run, run.jobs)}
    (alone, *_), (found, *_) = (
        find_savings(some, dict.fromkeys(some, (small, costs)), 1) for some in ({"mine": run}, both)
    )
    assert {**found, "seconds": 0} == {**alone, "seconds": 0} and found["seconds"] > alone["seconds"]


def test_what_saves_less_than_a_minute_is_not_named():
    run, tried = planned()
    assert find_savings({"mine": run}, {"mine": tried}, 1) == []


def test_what_does_not_suffice_is_a_warning():
    rows = [("mine", {"rule": "triggers", "at_once": 2, "memory": 3e9})]
    total = {"written": 5e9, "disk_left": 1e10, "memory_left": 1e10}
    assert find_warnings(rows, total) == []
    (full,) = find_warnings(rows, {**total, "disk_left": 4e9})
    assert full.startswith("Not enough disk space: 5 GB will be written, but only 4 GB is free in results/.")
    assert find_warnings(rows, {**total, "memory_left": 7e9}) == []
    rows.append(("mine", {"rule": "model", "at_once": 1, "memory": 5e9}))
    (together,) = find_warnings(rows, {**total, "memory_left": 4e9})
    needs = "2 x triggers (mine) 3 GB each, 1 x model (mine) 5 GB each"
    assert together.startswith(f"Not enough memory: 4 GB is free, and jobs at the same time need: {needs}. Run ")


@pytest.mark.parametrize("checkpoint", ["results/long/checkpoint", "results/long/checkpoint/steps/25"])
def test_a_checkpoint_that_is_not_trained_yet_is_planned_as_the_model_that_will_be(checkpoint):
    runs = {
        "long": Settings.model_validate({"embedded": {"layers": 2, "keep_steps": [25]}}),
        "early": Settings.model_validate({"model": {"checkpoint": checkpoint}, "prefixes": {"count": 77}}),
    }
    train = Job("train", "long", 1, "", [], ["results/long/checkpoint", "results/long/training.csv"], False)
    left = {"long": {"train": [train]}, "early": {"model": [job("model")]}}
    found = as_trained("early", runs, left)
    assert (found.model.checkpoint, found.embedded, found.prefixes.count) == ("embedded", runs["long"].embedded, 77)
    left["long"]["train"] = [train._replace(done=True)]
    assert as_trained("early", runs, left) is runs["early"]
    assert as_trained("long", runs, left) is runs["long"]


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"checkpoint": "embedded"}, "embedded": {"steps": 800, "keep_steps": [0, 300]}},
        {"report": {"control": "another"}},
        {"report": {"control": "auto"}},
    ],
)
def test_the_trial_needs_nothing_of_other_steps_and_runs(tmp_path, settings):
    """It trains fewer steps than those that are to be kept, and the run that is a control is not in it."""
    run = facts(sentences=["one two three"] * 20, **settings)._replace(jobs={"train": [job("train")]})
    small = trial._small_settings(run, tmp_path)
    assert small.contradictions() == [] and small.report.control == "none"


def test_the_trial_of_a_run_with_a_gpu_does_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(trial.torch.cuda, "is_available", lambda: False)
    run = facts(sentences=["one two three"] * 20, model={"checkpoint": "somewhere", "device": "cuda"})
    assert trial._small_settings(run, tmp_path).model.device == "cpu"


@pytest.mark.parametrize("dtype, seconds, weights", [("float32", 1e-6, 5e6), ("bfloat16", 3e-2, 5e5)])
def test_a_slow_type_gets_a_small_trial(monkeypatch, tmp_path, dtype, seconds, weights):
    """Processors without instructions for 16 bits are a hundred times slower."""
    made = []
    large = SHAPE._replace(memories=(14336,) * 32, width=4096, body=6_979_584_000, dtype=dtype, itemsize=2)
    timer = type("Timer", (), {"timeit": lambda *_: type("Found", (), {"median": seconds})})
    monkeypatch.setattr(trial, "Timer", lambda *_, **__: timer())
    monkeypatch.setattr(trial.GPT2LMHeadModel, "save_pretrained", lambda model, folder: made.append(model))
    trial._write_small_model(large, ["one two three"] * 20, tmp_path)
    (model,) = made
    assert sum(weight.numel() for weight in model.transformer.h.parameters()) == pytest.approx(weights, rel=0.3)


TOTAL = {
    "seconds": 90.0,
    "cores": 2,
    "gpu": 0,
    "written": 5e6,
    "memory": 2e9,
    "disk_left": 1e9,
    "memory_left": 4e9,
    "controls": 0.0,
}
SIZES = {"layers": 2, "all_memories": 24, **SHAPE._asdict()}
DONE = {"rule": "first", "jobs": 0, "done": True}
LEFT = {"rule": "second", "jobs": 2, "done": False, "at_once": 1, "written": 5e6, "memory": 2e9, "seconds": 90.0}
SAVING = {"setting": "keys.removal_triggers", "instead_of": 50, "value": 5, "seconds": 16800.0}


def text(*rules, savings=(), not_estimated=(), download=0, total=TOTAL, every=True, runs=("mine",)) -> list[str]:
    run = {"shape": SIZES, "text": {}, "download": download, "device": {"weights": 1e9, "working": 5e8}, "rules": rules}
    run["control"] = False
    plan = {"runs": dict.fromkeys(runs, run), "total": total, "savings": savings, "not_estimated": not_estimated}
    return as_text(plan, every).splitlines()


def test_a_plan_in_words_has_a_line_for_each_rule_and_the_totals():
    lines = text(DONE, LEFT)
    assert lines[0] == "Run mine: Hand, 400 parameters, 2 layers, d = 4, 24 memories, |V| = 10, float32"
    assert lines[1] == "  GPU memory: up to 1.5 GB per job that runs the model (1 GB of weights)"
    assert lines[2].split() == ["jobs", "disk", "memory", "per", "job", "time"]
    assert [line.split() for line in lines[3:5]] == [
        ["first", "done"],
        ["second", "2", "5", "MB", "2", "GB", "1", "min", "30", "s"],
    ]
    assert lines[-3:] == [
        "Time: about 1 min 30 s on 2 cores, with nothing else running.",
        "Disk: 5 MB to be written, 1 GB free.",
        "Memory: up to 2 GB per job, 4 GB free.",
    ]


def test_a_short_plan_has_what_takes_longest_and_20_lines_at_most():
    rules = [LEFT | {"rule": f"rule_{number}", "seconds": 60.0 * number} for number in range(1, 24)]
    lines = text(*rules, every=False)
    assert lines[:2] == ["Run mine: Hand, 400 parameters, 2 layers, 24 memories, float32", "  GPU memory up to 1.5 GB"]
    assert [line.split()[0] for line in lines[3:7]] == [f"rule_{number}" for number in (23, 22, 21, 20)]
    assert lines[3].split() == ["rule_23", "of", "mine", "2", "5", "MB", "2", "GB", "23", "min", "0", "s"]
    # 19 others: two jobs of 5 MB each, and 1 + 2 + ... + 19 minutes
    assert lines[7].split() == ["all", "others", "(--rules)", "38", "95", "MB", "2", "GB", "3", "h", "10", "min"]
    many = text(
        *rules,
        every=False,
        runs="abcdef",
        savings=[SAVING, SAVING],
        total={**TOTAL, "seconds": 90000.0, "controls": 45.0},
    )
    assert "and 4 other runs" in many and len(many) <= 20
    assert [line for line in text(DONE, every=False) if "jobs" in line] == []


def test_what_takes_longer_than_a_day_is_said_to_be_shorter_on_a_gpu():
    long = TOTAL | {"seconds": 90000.0}
    assert text(LEFT, total=long)[-4:-2] == [
        "Time: about 25 h 0 min on 2 cores, with nothing else running.",
        "With a GPU it may be much less: `ffkv plan --teraflops 20` plans for one (docs/plan.md).",
    ]
    (line,) = text(LEFT, total=long | {"gpu": 2e13})[-3:-2]
    assert line.startswith("Time: about 25 h 0 min on 2 cores and a GPU of 2e+13 operations per second,")


def test_the_share_of_controls_is_said():
    assert text(LEFT, total={**TOTAL, "controls": 45.0})[-3] == (
        "45 s of it (50 %) for untrained models beside the runs. `report.control: none` leaves them out."
    )


def test_settings_that_save_time_are_said():
    limit = {"setting": "corpus.limit", "instead_of": 0, "value": 700, "seconds": 3600.0}
    assert text(LEFT, savings=[SAVING, limit])[-4:-2] == [
        "Most time is saved by `keys.removal_triggers: 5` instead of 50: 4 h 40 min less.",
        "Then by `corpus.limit: 700` instead of all documents: 1 h 0 min less.",
    ]


def test_what_is_to_be_downloaded_is_said():
    assert text(LEFT, download=3 * 10**8)[1] == "  hub: 300 MB to download"


def test_a_plan_without_work_says_so():
    assert text(DONE)[-1] == "Nothing is left to do."
    assert text(DONE, not_estimated=["annotate_agreement"])[-2:] == [
        "Not estimated: annotate_agreement. They read finished runs.",
        "Nothing else is left to do.",
    ]


def test_rules_that_need_more_than_the_profile_for_slurm_asks_for_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles/slurm").mkdir(parents=True)
    (tmp_path / "profiles/slurm/profile.yaml").write_text(
        "default-resources:\n  mem_mb: 4000 * attempt\nset-resources:\n  triggers:\n    mem_mb: 16000 * attempt\n"
        '    ?if os.environ.get("X"):\n      slurm_partition: x\n  train:\n    runtime: 240 * attempt\n'
    )
    rows = [{"rule": "triggers", "memory": 15e9}, {"rule": "train", "memory": 3.9e9}]
    assert tell_shortages(rows) == []
    (told,) = tell_shortages([*rows, {"rule": "triggers", "memory": 20e9}, {"rule": "report", "memory": 5e9}])
    assert "triggers 20 GB (16 GB), report 5 GB (4 GB)." in told


def test_the_profile_that_is_shipped_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"rule": "triggers", "memory": 200e9}, {"rule": "report", "memory": 3.9e9}]
    assert "triggers 200 GB (16 GB)." in tell_shortages(rows)[0]
