"""Costs on a machine: time, what is done, what will not do; and the rules beside those of the workflow."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
from plan_parts import MACHINE, SHAPE, TRAIN, VALIDATION
from support import ROOT

from ffkv.errors import UserError
from ffkv.plan import machine
from ffkv.plan.costs import costs
from ffkv.plan.machine import LIBRARIES, disk_left, memory_left
from ffkv.plan.outlook import AFTER, MAKES, disk_peak, in_bytes, outlook, total_seconds, warnings
from ffkv.plan.work import Cost, Run
from ffkv.settings import Settings

SETTINGS = Settings(shards=4)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(*costs, on=MACHINE):
    return {"mine": outlook("mine", SETTINGS, list(costs), on)}


def test_seconds_of_a_job_and_of_a_rule():
    """Four jobs of four threads on eight cores run in two rounds; four threads do 1 + 3 * 0.75 times the work of one."""
    row = rows(Cost("triggers", 4, 4, work={"body": 13e9, "seconds": 4.0}, libraries="model"))["mine"][0]
    assert row.job_seconds == pytest.approx(1 + 13 / 4 / 3.25 + 1)
    assert row.seconds == pytest.approx(2 * row.job_seconds)
    assert row.at_once == 2


def test_a_job_gets_no_more_threads_than_there_are():
    small = replace(MACHINE, cores=1)
    row = rows(Cost("triggers", 1, 4, work={"body": 2e9}, libraries=""), on=small)["mine"][0]
    assert row.job_seconds == pytest.approx(2)


def test_total_is_the_longest_chain_or_the_work_spread_over_the_cores():
    chain = [
        Cost(rule, work={"seconds": 5.0}, libraries="") for rule in ("model", "corpus (train)", "triggers", "keys")
    ]
    assert total_seconds(rows(*chain), 8, MACHINE) == pytest.approx(15)  # keys wait for what is not here
    wide = Cost("triggers", 100, 1, work={"seconds": 800.0}, libraries="")
    assert total_seconds(rows(wide), 8, MACHINE) == pytest.approx(104)  # 13 rounds of 8 seconds
    side_by_side = {"a": rows(wide)["mine"], "b": rows(wide)["mine"]}
    assert total_seconds(side_by_side, 8, MACHINE) == pytest.approx(200)


def test_what_is_done_takes_nothing(tmp_path):
    (tmp_path / "results/mine/triggers").mkdir(parents=True)
    cost = Cost("triggers", 4, 4, work={"seconds": 8.0}, written=1e12, memory=1e15, libraries="")
    for shard in range(4):
        found = rows(cost)
        assert not found["mine"][0].done
        assert total_seconds(found, 8, MACHINE) > 0
        (tmp_path / f"results/mine/triggers/{shard}.h5").touch()
    found = rows(cost)
    assert found["mine"][0].done
    assert total_seconds(found, 8, MACHINE) == 0
    assert warnings(found, disk=0, memory=0, folder=Path("results")) == []


def test_a_disk_that_is_too_small():
    found = rows(Cost("prefixes", written=3e9), Cost("merge_prefixes", written=3e9))
    assert warnings(found, disk=6.1e9, memory=1e12, folder=Path("results")) == []
    (warning,) = warnings(found, disk=5.9e9, memory=1e12, folder=Path("results"))
    assert "The disk will not do" in warning
    assert "takes up to 6 GB, and results has 5.9 GB left" in warning


def test_what_stands_beside_a_shard_counts_until_what_follows_is_written(tmp_path):
    """Two of four jobs at a time keep 1 GB each beside 4 GB of shards and 1 GB of others; 3 GB follow."""
    shards = Cost("prefixes", 4, 4, written=4e9, libraries="", beside=1e9)
    after, other = Cost("merge_prefixes", written=3e9), Cost("triggers", written=1e9)
    assert disk_peak(rows(shards, after, other)["mine"]) == 8e9
    assert disk_peak(rows(shards, other)["mine"]) == 7e9
    (tmp_path / "results/mine").mkdir(parents=True)
    (tmp_path / "results/mine/prefixes.h5").touch()
    found = rows(shards, after, other)
    assert disk_peak(found["mine"]) == 7e9
    (warning,) = warnings(found, disk=6.9e9, memory=1e12, folder=Path("results"))
    assert "takes up to 7 GB" in warning
    assert disk_peak([]) == 0


def test_a_memory_that_is_too_small():
    found = rows(Cost("merge_triggers", memory=9e9))
    assert warnings(found, disk=1e12, memory=9.2e9, folder=Path("results")) == []
    (warning,) = warnings(found, disk=1e12, memory=9e9, folder=Path("results"))
    assert "a job of merge_triggers (mine) takes 9.1 GB, and 9 GB are left" in warning
    assert "lower triggers.per_key" in warning


def test_a_memory_that_is_too_small_for_jobs_side_by_side():
    found = rows(Cost("triggers", 4, 4, memory=9e9, libraries=""))
    assert warnings(found, disk=1e12, memory=18e9, folder=Path("results")) == []
    (warning,) = warnings(found, disk=1e12, memory=17e9, folder=Path("results"))
    assert "2 jobs of triggers (mine) side by side" in warning


def test_limits_of_a_control_group_count(tmp_path):
    free = memory_left(tmp_path / "no such place")
    for version in ("{}", "memory/{}"):
        folder = tmp_path / version[:6]
        names = ("memory.max", "memory.current", "memory.stat")
        if version != "{}":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        for name, text in zip(names, ("1000000\n", "600000\n", "anon 500000\ninactive_file 100000\n")):
            path = folder / version.format(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert memory_left(folder) == 500_000 < free
        (folder / version.format(names[0])).write_text("max\n")
        assert memory_left(folder) > 500_000


def test_the_disk_of_a_folder_that_is_still_to_be_made(tmp_path):
    assert disk_left(tmp_path / "results" / "mine") == pytest.approx(disk_left(tmp_path), rel=0.1)


def workflow_rules():
    """Name, threads and text of every rule of the workflow but `all`."""
    for path in sorted((ROOT / "workflow/rules").glob("*.smk")):
        for text in re.split(r"^rule ", path.read_text(), flags=re.M)[1:]:
            yield text.partition(":")[0], int(re.search(r"threads: (\d+)", text)[1]), text


def test_every_rule_of_the_workflow_is_planned():
    """By its name, with its threads; and a rule is taken for done by files that it really makes."""
    planned = {}
    for cost in costs(Run(Settings(model={"dtype": "auto"}), SHAPE, TRAIN, VALIDATION)):
        planned.setdefault(cost.rule.partition(" ")[0], []).append(cost)
    found = {name: (threads, text) for name, threads, text in workflow_rules()}
    assert planned.keys() == found.keys()
    assert {cost.rule for rows in planned.values() for cost in rows} == AFTER.keys() == MAKES.keys()
    for name, rows in planned.items():
        threads, text = found[name]
        outputs = text.partition("output:")[2].partition("log:")[0]
        for row in rows:
            assert row.threads == threads, name
            for made in MAKES[row.rule]:
                path = "reports/{run}/index.html" if "reports" in made else f"results/{{run}}/{made}"
                assert path.replace("/train.h5", "/{split}.h5").replace("/validation.h5", "/{split}.h5") in outputs, (
                    name
                )


def test_sizes_for_a_person():
    assert [in_bytes(size) for size in (1400, 2.5e6, 3.21e9, 4e12)] == ["1 kB", "2.5 MB", "3.21 GB", "4 TB"]


def test_a_machine_is_measured_by_a_runs_own_work(monkeypatch):
    """Every rate is there, and a group of libraries takes no less than what stands in it."""
    monkeypatch.setattr(machine, "STAGES", ({"store": "json", "tables": "numpy"}, {"model": "csv"}))
    machine.libraries.cache_clear()
    found = machine.measure(SHAPE, "cpu", 64, 2)
    machine.libraries.cache_clear()
    assert all(rate > 0 for rate in vars(found.rates).values())
    assert found.libraries.keys() == {"store", "tables", "model"}
    store, tables = found.libraries["store"], found.libraries["tables"]
    assert tables.memory > store.memory > 0
    assert tables.seconds > store.seconds > 0
    with pytest.raises(UserError, match="GPUs here"):
        machine.measure(SHAPE, "cuda:99", 64, 2)


def test_what_jobs_import_can_be_imported():
    modules = [name for stages in machine.STAGES for names in stages.values() for name in names.split(", ")]
    assert len(modules) > 5
    assert all(importlib.util.find_spec(name) for name in modules)
    assert {cost.libraries for cost in costs(Run(Settings(), SHAPE, TRAIN, VALIDATION))} == {"", *LIBRARIES}
