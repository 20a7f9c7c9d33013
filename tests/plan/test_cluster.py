"""Which rules the profile for SLURM gives too little memory."""

from ffkv.plan.cluster import SHIPPED, profile_memory, tell_shortages


def test_only_what_is_short_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles/slurm").mkdir(parents=True)
    (tmp_path / "profiles/slurm/profile.yaml").write_text(
        "default-resources:\n  mem_mb: 4000 * attempt\nset-resources:\n  triggers:\n    mem_mb: 16000 * attempt\n"
        '    ?if os.environ.get("X"):\n      slurm_partition: x\n'
    )
    rows = [{"rule": "triggers", "memory": 15e9}, {"rule": "corpus", "memory": 3.9e9}]
    assert tell_shortages(rows) == []
    (told,) = tell_shortages([*rows, {"rule": "triggers", "memory": 20e9}, {"rule": "report", "memory": 5e9}])
    assert "triggers 20 GB (16 GB), report 5 GB (4 GB)." in told


def test_the_profile_that_is_shipped_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules, other = profile_memory(SHIPPED / "profile.yaml")
    assert (rules["model"], other) == (16e9, 4e9)
    assert "triggers 200 GB (16 GB)" in tell_shortages([{"rule": "triggers", "memory": 200e9}])[0]
