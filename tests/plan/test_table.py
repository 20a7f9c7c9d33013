"""A plan as text, and which rules the profile for SLURM gives too little memory."""

from plan.hand import SHAPE

from ffkv.plan.table import as_text, tell_shortages

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


def text(*rules, savings=(), not_estimated=(), download=0, total=TOTAL) -> list[str]:
    run = {"shape": SIZES, "text": {}, "download": download, "device": {"weights": 1e9, "working": 5e8}, "rules": rules}
    plan = {"runs": {"mine": run}, "total": total, "savings": savings, "not_estimated": not_estimated}
    return as_text(plan).splitlines()


def test_what_is_done_takes_nothing():
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


def test_what_takes_longer_than_a_day_is_said_to_be_shorter_on_a_gpu():
    long = TOTAL | {"seconds": 90000.0}
    assert text(LEFT, total=long)[-4:-2] == [
        "Time: about 25 h 0 min on 2 cores, with nothing else running.",
        "With a GPU it may be much less: `ffkv plan --teraflops 20` plans for one (docs/plan.md).",
    ]
    (line,) = text(LEFT, total=long | {"gpu": 2e13})[-3:-2]
    assert line.startswith("Time: about 25 h 0 min on 2 cores and a GPU of 2e+13 operations per second,")


def test_the_share_of_controls_is_said():
    assert text(LEFT, total={**TOTAL, "controls": 45.0})[-3].replace("\u00a0", " ") == (
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
