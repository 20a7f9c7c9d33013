"""The code of docs/python.md runs from top to bottom on a finished run."""

import re
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs/python.md"


@pytest.mark.workflow
def test_the_tutorial_runs_as_it_is_written(tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "results").mkdir()
    for name in ("demo", "tiny"):  # the checkpoint of the run is in results/tiny
        (tmp_path / "results" / name).symlink_to(tiny / "results/tiny")
    monkeypatch.chdir(tmp_path)
    page, variables = TUTORIAL.read_text(), {}
    for block in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        line = page[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], TUTORIAL, "exec"), variables)
    assert "There is no layer 99. The model has layers 0 to 1." in capsys.readouterr().out
    assert len(variables["by_memory"]) == variables["run"].anatomy.layer_offset[-1]
