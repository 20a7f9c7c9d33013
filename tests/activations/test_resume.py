"""A shard that is interrupted goes on from where it was, and ends in the same bytes."""

import os
import re
import signal

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from support import random_sentences

from ffkv.activations import batches, commands, last_token, resume
from ffkv.activations.step import find_triggers, sample_prefixes
from ffkv.base.settings import Batches, Prefixes
from ffkv.base.steps import Work
from ffkv.model.checkpoint.tokenizer import load_tokenizer

SHAPE = ["--batch-tokens", "40", "--block-sentences", "8"]
BATCHES = 12  # at least so many in the pass below


class Killed(Exception):
    """Stands for a process that is gone from one moment to the next."""


@pytest.fixture
def corpus(proven, write_corpus):
    sentences = random_sentences(3, 60)
    return write_corpus(sentences, load_tokenizer(proven("gpt2")))


@pytest.fixture
def interrupt(monkeypatch):
    """Makes something happen when a batch is to be run; tells how many were."""
    run = []

    def arrange(module, at: int | None = None, happens=None) -> list:
        name = "Pass" if module is last_token else "pad"  # what makes a batch

        def make(*arguments):
            if len(run) == at:
                happens()
            run.append(at)
            return original(*arguments)

        run.clear()
        monkeypatch.undo()
        monkeypatch.setattr(resume, "LARGEST_SHARE", float("inf"))  # after every batch, if told to
        original = getattr(module, name)
        monkeypatch.setattr(module, name, make)
        return run

    return arrange


def die():
    raise Killed


def told(number):
    return lambda: os.kill(os.getpid(), number)


def call(command, folder, corpus, name, *more):
    arguments = ["--model", folder, "--corpus", corpus, *SHAPE, "--output", corpus.parent / name, *more]
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def is_whole(path) -> bool:
    """Whether a file holds the data of an undisturbed pass."""
    with h5py.File(path) as file, h5py.File(path.with_name("whole.h5")) as whole:
        names: list[str] = []
        whole.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        same = all(file[name][...].tobytes() == whole[name][...].tobytes() for name in names)
        return same and dict(file.attrs) == dict(whole.attrs)


def saved(corpus) -> list[str]:
    return [path.name for path in corpus.parent.iterdir() if resume.PROGRESS in path.name]


@pytest.mark.parametrize("more", [[], ["--no-one-prefix-per-sentence", "--per-key", "3"]])
def test_a_killed_shard_goes_on_after_the_last_batch_that_was_saved(proven, corpus, interrupt, more):
    run = interrupt(batches)
    assert call(commands.triggers, proven("gpt2"), corpus, "whole.h5", *more).exit_code == 0
    total = len(run)
    assert total >= BATCHES
    more = [*more, "--save-every", "0"]
    for at in (0, 1, 5, total - 6 - 1):  # the third and fourth kill hit a process that went on itself
        run = interrupt(batches, at, die)
        done = call(commands.triggers, proven("gpt2"), corpus, "shard.h5", *more)
        assert isinstance(done.exception, Killed)
        assert not (corpus.parent / "shard.h5").exists()
    run = interrupt(batches)
    done = call(commands.triggers, proven("gpt2"), corpus, "shard.h5", *more)
    assert done.exit_code == 0
    assert "going on after" in done.output
    assert len(run) == 1
    assert is_whole(corpus.parent / "shard.h5")
    assert saved(corpus) == []


def test_a_state_of_other_batches_is_not_continued(proven, corpus, interrupt, capsys):
    """Half as many tokens per batch, because the memory did not suffice: the number of batches that are done says nothing then."""
    interrupt(batches, 5, die)
    call(commands.triggers, proven("gpt2"), corpus, "shard.h5", "--save-every", "0")
    interrupt(batches)
    saved_in, batching = resume.progress_path(corpus.parent / "shard.h5"), Batches(tokens=40, block_sentences=8)
    for halvings, goes_on in ((1, False), (0, True)):
        find_triggers(
            proven("gpt2"), corpus, batching=batching, work=Work("cpu", halvings=halvings), progress_file=saved_in
        )
        assert ("going on after" in capsys.readouterr().err) == goes_on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_shard_that_is_told_to_stop_saves_what_it_has(proven, corpus, interrupt, number):
    run = interrupt(batches)
    call(commands.triggers, proven("gpt2"), corpus, "whole.h5")
    total = len(run)
    interrupt(batches, 7, told(number))
    done = call(commands.triggers, proven("gpt2"), corpus, "shard.h5")
    assert done.exit_code == 128 + number
    assert f"stopped by {number.name}" in done.output and "tokens are done and saved" in done.output
    run = interrupt(batches)
    assert call(commands.triggers, proven("gpt2"), corpus, "shard.h5").exit_code == 0
    assert len(run) == total - 8
    assert is_whole(corpus.parent / "shard.h5")


def test_signals_are_as_before_when_a_pass_is_over(proven, corpus):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    call(commands.triggers, proven("gpt2"), corpus, "a.h5")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def spoil(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        (lambda path: None, ["--per-key", "7"], "belongs to other settings or code"),
        (spoil, [], "starting from the beginning: .* is not what ffkv wrote"),
    ],
    ids=["settings", "damaged"],
)
def test_what_does_not_fit_is_not_taken_up(proven, corpus, interrupt, change, more, said):
    run = interrupt(batches)
    call(commands.triggers, proven("gpt2"), corpus, "whole.h5", *more)
    total = len(run)
    interrupt(batches, 7, told(signal.SIGTERM))
    call(commands.triggers, proven("gpt2"), corpus, "shard.h5")
    change(corpus.parent / ".shard.h5.progress")
    run = interrupt(batches)
    done = call(commands.triggers, proven("gpt2"), corpus, "shard.h5", *more)
    assert done.exit_code == 0
    assert len(run) == total
    assert re.search(said, done.output)
    assert is_whole(corpus.parent / "shard.h5")


def test_other_code_is_another_pass(monkeypatch):
    """Of the modules that the numbers depend on, and of no other."""
    assert resume.identity("one", {}, "cpu") == resume.identity("one", {}, "cpu") != resume.identity("two", {}, "cpu")


def test_saving_takes_a_bounded_share_of_the_time(monkeypatch):
    """However slow the disk is: ten seconds to save are followed by two hundred of work."""
    now, times = [0.0], []

    def slow(progress_file, state):
        times.append(now[0])
        now[0] += 10

    monkeypatch.setattr(resume, "save", slow)
    monkeypatch.setattr(resume.time, "monotonic", lambda: now[0])
    with resume.resuming(resume.ProgressFile(resume.Path("/nowhere"), {}, 60), None) as save_if_due:
        for _ in range(1000):
            now[0] += 1
            save_if_due()
    assert times[0] == 60
    assert np.diff(times).min() >= 200


def test_killed_prefixes_go_on_after_the_last_block(proven, corpus, interrupt):
    more = ["--count", "40"]
    run = interrupt(last_token)
    assert call(commands.sampled_prefixes, proven("gpt2"), corpus, "whole.h5", *more).exit_code == 0
    total = len(run)
    interrupt(last_token, total - 1, die)
    assert isinstance(call(commands.sampled_prefixes, proven("gpt2"), corpus, "a.h5", *more).exception, Killed)
    assert len(list((corpus.parent / "a.blocks").glob("*.h5"))) == 4
    run = interrupt(last_token)
    assert call(commands.sampled_prefixes, proven("gpt2"), corpus, "a.h5", *more).exit_code == 0
    assert len(run) < total / 2
    assert is_whole(corpus.parent / "a.h5")
    assert saved(corpus) == []


def test_blocks_of_another_sample_are_made_again(proven, corpus, interrupt):
    call(commands.sampled_prefixes, proven("gpt2"), corpus, "whole.h5", "--count", "40", "--seed", "1")
    run = interrupt(last_token)
    call(commands.sampled_prefixes, proven("gpt2"), corpus, "probe.h5", "--count", "40")
    interrupt(last_token, len(run) - 1, die)
    call(commands.sampled_prefixes, proven("gpt2"), corpus, "a.h5", "--count", "40")
    interrupt(last_token)
    again = call(commands.sampled_prefixes, proven("gpt2"), corpus, "a.h5", "--count", "40", "--seed", "1")
    assert again.exit_code == 0
    assert is_whole(corpus.parent / "a.h5")


def test_blocks_of_other_batches_are_made_again(proven, corpus, interrupt):
    """Half as many tokens per batch, because the memory did not suffice: blocks of larger batches have other last digits."""
    sample, batching, path = Prefixes(count=40), Batches(tokens=40, block_sentences=8), corpus.parent / "a.h5"

    def sampled(halvings):
        sample_prefixes(proven("gpt2"), corpus, path, sample, batching, work=Work("cpu", halvings=halvings))

    for halvings, again in ((0, True), (0, False), (1, True), (1, False)):
        run = interrupt(last_token)
        sampled(halvings)
        assert (len(run) > 0) == again
