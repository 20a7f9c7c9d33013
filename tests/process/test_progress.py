"""Progress in a log file."""

from tqdm import tqdm

from ffkv.base.process.progress import progress


def test_a_log_file_gets_plain_lines_that_say_what_is_done(capfd):
    with progress(1500, "sentence", "triggers") as bar:
        bar.update(1500)
    text = capfd.readouterr().err
    assert "triggers: 100%" in text
    assert "1.50k/1.50k" in text
    assert text.isascii()


def test_a_bar_has_no_thread(monkeypatch):
    """A process with threads cannot be forked safely."""
    monkeypatch.setattr(tqdm, "monitor", None)
    with progress(100, "sentence", "triggers") as bar:
        assert bar.monitor is None


def test_a_bar_looks_at_the_clock_at_each_update(capfd):
    with progress(100, "sentence", "triggers") as bar:
        bar.mininterval = 0  # seconds between lines
        bar.update(90)  # after so large a step tqdm would wait for another one
        bar.update(1)
        assert "91.0/100" in capfd.readouterr().err
