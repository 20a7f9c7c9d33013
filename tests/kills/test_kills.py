"""kill -9 at random moments of a whole run: the data are those of an undisturbed one."""

import random
import subprocess
import time

import pytest
import yaml
from forks import with_forks
from kills.attempts import Attempt, ended_in
from kills.watch import Watcher
from support import OFFLINE, ROOT, assert_same_data, snakemake

pytestmark = pytest.mark.kills
KILLS = 12  # as many of each way
LONGEST_WAIT = 4.0  # seconds
SEED = 20


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """configs/tiny.yaml, in three shards."""
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text()) | {"shards": 3, "layer_groups": 1}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def undisturbed(settings, tmp_path_factory):
    """The folder of a run that nobody disturbed, how many jobs it had, and its seconds."""
    directory, begin = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    done = snakemake(directory, settings)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory, len(ended_in(done.stderr)), time.monotonic() - begin


def recover(directory) -> None:
    command = ["ffkv", "recover", "--cancel", "--directory", directory]
    done = subprocess.run(command, capture_output=True, text=True, env=with_forks(OFFLINE))
    assert done.returncode == 0, done.stderr


def kill(attempt: Attempt, how: str, choose: random.Random) -> bool:
    """Kills; whether there was something to kill."""
    if how == "step":
        steps = attempt.steps()
        if steps:
            choose.choice(steps).kill()
        return bool(steps)
    if not attempt.running:
        return False
    attempt.kill_group() if how == "group" else attempt.kill_snakemake()
    return True


def test_a_run_that_is_killed_again_and_again_ends_in_the_same_data(settings, undisturbed, tmp_path, cost):
    choose, kills, lost = random.Random(SEED), {"step": 0, "group": 0, "snakemake": 0}, 0
    whole, jobs, seconds = undisturbed
    # Each kill waits until so many jobs are done: kills are spread over the run however fast the machine is, and not so
    # late that it could be over before the last.
    moments = sorted(choose.randrange(2 * jobs // 3) for _ in range(KILLS))
    ways = choose.sample(list(kills) * (KILLS // len(kills)), KILLS)
    finished, watcher, begin = set(), Watcher([tmp_path / "results", tmp_path / "reports"]), time.monotonic()
    watcher.start()
    for number in range(200):
        attempt = Attempt(tmp_path, settings, number)
        while attempt.running and moments:
            if len(finished | attempt.ended()) < moments[0] or not attempt.steps():
                attempt.wait_up_to(0.1)
                continue
            attempt.wait_up_to(choose.uniform(0, LONGEST_WAIT))
            if kill(attempt, ways[-1], choose):
                kills[ways.pop()] += 1
                moments.pop(0)
        attempt.process.wait(1200)
        again = finished & set(attempt.began().values())
        assert not again, f"done twice: {again}"
        finished |= attempt.ended()
        lost += len(attempt.under_way())
        if attempt.process.returncode == 0:
            break
        recover(tmp_path)
    watcher.stop()
    assert attempt.process.returncode == 0, attempt.log.read_text()[-4000:]
    assert not moments, f"the run was over after {kills}"
    assert all(kills.values())
    assert watcher.broken == []
    assert watcher.seen > 50
    assert_same_data(tmp_path, whole)
    beyond = time.monotonic() - begin - seconds
    cost(f"kill -9 of {kills} in {number + 1} starts, {lost} jobs begun again, beyond {seconds:.0f} s", beyond)
