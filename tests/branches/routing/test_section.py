"""What the page shows of routing, on made-up tables."""

import ffkv
from ffkv.base.files import tables
from ffkv.branches.registry import BRANCHES
from ffkv.branches.routing.section import SECTION
from ffkv.run.report.section import arrange, draw_exhibits, summary
from tests.run.report.conftest import write_results


def test_an_expert_of_a_pattern_is_named_and_one_of_none_is_counted(tmp_path):
    """Of the made-up layers, expert 0 gets all digits, and expert 7 gets no token."""
    run = ffkv.open(write_results(tmp_path / "made"))
    (block,) = SECTION.after(run)
    rows = block.table.rows
    assert len(rows) == 5 and all("digits" in row[0] for row in rows)  # of six layers
    assert {row[1] for row in rows} < {f"L{layer}.e0" for layer in range(6)}
    assert ("experts that none of 1,000 tokens is sent to", "6 of 48", "–") in summary(run)
    drawn = draw_exhibits(run, only="routing")["routing_load"]
    assert "6 of 48 experts get no token" in drawn.caption.shows


def test_a_model_without_experts_has_a_sentence_and_no_figure(tmp_path):
    folder = write_results(tmp_path / "dense")
    for table in BRANCHES["routing"].tables:
        tables.write(table.frame([]), folder / table.path)
    run = ffkv.open(folder)
    assert not draw_exhibits(run, only="routing")
    shown = arrange(run, BRANCHES["routing"], {})
    assert [block.text for block in shown["after"]] == ["The model has no experts."] and not shown["exhibits"]
    assert not any("experts" in what for what, *_ in summary(run))
