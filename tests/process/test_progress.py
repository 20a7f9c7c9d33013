"""Progress in a log file."""

from ffkv.base.process.progress import progress


def test_a_log_file_gets_plain_lines_that_say_what_is_done(capfd):
    with progress(1500, "sentence", "triggers") as bar:
        bar.update(1500)
    text = capfd.readouterr().err
    assert "triggers: 100%" in text
    assert "1.50k/1.50k" in text
    assert text.isascii()
