"""What the report says of behaviours: what was measured, on which prompts, and what the control gives beside."""

import re

import numpy as np
import pytest

from ffkv.base.errors import UserError
from ffkv.branches.behaviours import section as section_behaviours
from ffkv.branches.behaviours.told import caption_layers, caption_sets, caption_writers, main_numbers, summarize
from ffkv.branches.registry import BRANCHES
from ffkv.run.report.page_tables import pushed
from ffkv.run.report.section import arrange, summary
from ffkv.run.results import indexes
from tests.run.report.made_up_rows import BEHAVIOUR as NAME

# Of the strata outside the candidates: all of the first are measured, and some of the second.
STRATA = (
    {"stratum": 0, "memories": 9, "measured": 9, "largest": 0.5, "limit": 0.25, "above": 1, "estimate": 1, "most": 1},
    {
        "stratum": 1,
        "memories": 4000,
        "measured": 20,
        "largest": 0.1,
        "limit": 0.25,
        "above": 0,
        "estimate": 0,
        "most": 900,
    },
)


def told(run, control=None) -> str:
    """The one paragraph of the behaviour, with plain blanks."""
    (paragraph,) = summarize(run, control)
    return paragraph.replace("\u00a0", " ")


def counted(run) -> list[str]:
    """The main numbers of the behaviour, with plain blanks."""
    return [value.replace("\u00a0", " ") for value in main_numbers(run).values()]


def test_numbers_stand_alone_and_a_paragraph_says_on_what_they_were_measured(having):
    its = having(memories=lambda table: table.assign(disagrees=False))
    assert [what.removeprefix("agreement: ") for what in main_numbers(its)] == [
        "prompts whose answer has a higher logit than the wrong answer",
        "memories that contribute otherwise on the prompts (q ≤ 0.05)",
        "memories whose screen is not 0 (q ≤ 0.05)",
        "what all memories together carry of it, patched at the last token",
        "its 95 % interval",
    ]
    assert counted(its) == ["98 %", "1,234", "56", "7 %", "−1 % to 15 %"]
    count = len(its.table("behaviour_memories").query("reach == 'total'"))
    assert told(its) == (
        "agreement: 198 prompts. They are of 66 groups, and a group counts as one draw: the file says of which group each prompt "
        f"is. Over {count} candidates and the same prompts, screen and exact effect correlate by 0.95. For 0 of them, the two "
        "differ by more than half of the larger one."
    )


def test_how_many_memories_the_screen_may_have_missed(having):
    """All strata together; nothing where no candidate is significant, and where nothing was drawn."""
    assert told(having(missed=STRATA)).endswith(
        "larger one. Outside the candidates, at most 901 of 4,009 memories have a total effect of 0.25 logits or more, the smallest of"
        " a significant candidate (95 %, from 29 drawn ones, of which 1 has one)."
    )
    unknown = dict.fromkeys(("limit", "above", "estimate", "most"), np.nan)
    for missed in ((), [{**row, **unknown} for row in STRATA]):
        assert told(having(missed=missed)).endswith("larger one.")


def test_how_prompts_were_grouped(having):
    words = told(having(grouped_by="words", groups=12))
    assert (
        "of 12 groups, and a group counts as one draw: pairs that share a word in which their prompts differ are one group."
        in words
    )
    alone = told(having(grouped_by="prompt", groups=198))
    assert "198 prompts. Each prompt counts as one draw. " in alone and "group" not in alone
    equal = told(having(grouped_by="prompt", groups=190))  # some prompts are there twice
    assert "of 190 groups, and a group counts as one draw. " in equal
    lists = having(kind="lists", explained=False, accuracy=np.nan)
    assert told(lists).startswith("agreement: two lists of prompts, 198 prompts. They are of 66 groups, ")
    assert told(lists).endswith("each prompt is.") and counted(lists) == ["1,234"]


def test_answers_of_several_tokens_are_told(having):
    words = "12 of them have an answer of several tokens: their logit difference is that of summed log-probabilities, and memories are"
    assert words in told(having(several=12)) and "several tokens" not in told(having())


@pytest.mark.parametrize("counts", [{"significant": np.nan, "screened": np.nan}, {"significant": 0, "screened": 3}])
@pytest.mark.parametrize("kind", ["pairs", "lists"])
def test_with_too_few_groups_no_count_is_told(having, counts, kind):
    """Also where a table has a count that nobody should read."""
    its = having(kind=kind, explained=kind == "pairs", groups=8, smallest_p=0.125, **counts)
    assert "otherwise: no p-value of so few groups is below 0.12" in told(its)
    assert counted(its) == (["–"] if kind == "lists" else ["98 %", "–", "–", "7 %", "−1 % to 15 %"])


def test_a_share_that_cannot_be_told_has_its_reason(having):
    nothing = {"by_memories": np.nan, "by_memories_low": np.nan, "by_memories_high": np.nan}
    assert "is told: the behaviour is not surely above 0." in told(having(**nothing))
    assert counted(having(**nothing))[-2:] == ["–", "–"]
    left = "is told: the behaviour is measured from what is left when they are patched."
    assert left in told(having(kind="prompts", **nothing))
    assert left in told(having(settings={"baseline": "mean"}, **nothing))
    few = having(by_memories_low=np.nan, by_memories_high=np.nan)
    assert counted(few)[-2:] == ["7 %", "–"]  # no interval of fewer groups
    empty = having(
        sets=lambda table: table.assign(completeness=np.nan, completeness_low=np.nan, completeness_high=np.nan)
    )
    assert caption_sets(empty).shows == "agreement: no share can be told, because the behaviour is not surely above 0."


def test_where_writes_cannot_be_told_apart_it_is_said_and_there_is_no_figure(having):
    said = "What attention and memories write of it cannot be told apart in this model"
    name, shown = "behaviour_writers", section_behaviours.SECTION.figures["behaviour_writers"].applies
    without = having()
    assert shown(without) and said not in told(without)
    without._tables[name] = without.table(name)[:0]
    assert said in told(without) and not shown(without)
    for other in (having(settings={"baseline": "mean"}), having(kind="prompts"), having(explained=False)):
        other._tables[name] = other.table(name)[:0]
        assert said not in told(other)
    earlier = having()  # an ffkv that did not measure it
    earlier.__dict__["tables"] = [each for each in earlier.tables if each != name]
    assert said not in told(earlier) and not shown(earlier)
    assert caption_writers(earlier).shows == "agreement: nothing was measured."


@pytest.mark.parametrize("correlation", [0.18, -0.4, 0.99])
def test_agreement_of_the_screen_is_a_number_and_no_verdict(having, correlation):
    said = told(having(pearson=correlation, memories=lambda table: table.assign(disagrees=True)))
    written = f"{correlation:.2f}".replace("-", "−")
    assert f"screen and exact effect correlate by {written}. For " in said
    assert " agree" not in said.removeprefix("agreement")
    count = re.search(r"Over (\d+) candidates", said)[1]
    assert f"For {count} of them, the two differ" in said
    assert "correlate" not in told(having(pearson=np.nan))


def test_a_screen_that_could_not_be_held_is_told(having):
    lacking = having(memories=lambda table: table.assign(frozen_screen=np.nan, frozen_estimate=np.nan))
    assert told(lacking).endswith(" The frozen screen could not be computed.")
    assert "frozen" not in told(having())


def test_numbers_of_the_control_stand_in_a_column(having, change):
    """Of a control that has the behaviour, of one that lacks it, and of one that was not asked."""
    control = having(
        accuracy=0.82, significant=68, screened=4, by_memories=0.7, by_memories_low=0.49, by_memories_high=0.83
    )
    beside = [line for line in summary(having(), control) if line[0].startswith("agreement")]
    assert [(own.replace("\u00a0", " "), its.replace("\u00a0", " ")) for _, own, its in beside] == [
        ("98 %", "82 %"),
        ("1,234", "68"),
        ("56", "4"),
        ("7 %", "70 %"),
        ("−1 % to 15 %", "49 % to 83 %"),
    ]
    assert counted(having(accuracy=0.51, explained=False))[-2:] == ["–", "–"]
    assert "(" not in told(having(), control)
    other = change({"behaviours": {}})
    assert told(having(), other).endswith(f" {other.name} was not asked for it.")
    assert "below 60 %, so there is nothing to explain. " in told(having(explained=False), other)


def test_tables_of_other_behaviours_than_the_settings_are_refused(having):
    for names, message in (
        (["other"], "of the behaviours other, and its settings name agreement"),
        ([], "behaviours none, and"),
    ):
        its = having()
        table = its.table("behaviours")
        its._tables["behaviours"] = table.head(len(names)).assign(behaviour=names)
        with pytest.raises(UserError, match=message):
            told(its)
        with pytest.raises(UserError, match=message):
            section_behaviours.draw_sets(its, None)


def test_empty_columns_leave_no_nan_on_the_page(having):
    """All that may be empty is, as of a model of two lists, or of a behaviour near 0 with few groups."""
    names = (
        "significant",
        "screened",
        "by_memories",
        "by_memories_low",
        "by_memories_high",
        "pearson",
        "frozen_pearson",
    )
    empty = dict.fromkeys(
        ("effect", "effect_q", "low", "high", "random_memories", "frozen_screen", "frozen_estimate"), np.nan
    )
    its = having(smallest_p=0.5, memories=lambda table: table.assign(**empty), **dict.fromkeys(names, np.nan))
    behaviours = arrange(its, BRANCHES["behaviours"], {})
    cells = [str(cell) for block in behaviours["after"] if block.table for row in block.table.rows for cell in row]
    assert cells and not any(re.search(r"\bnan\b", cell) for cell in cells)
    assert "nan" not in f"{told(its)}{counted(its)}{caption_layers(its)}{caption_sets(its)}".lower()


def test_memories_are_shown_with_the_end_of_the_value_that_they_push_towards(run, having):
    """The top token where the coefficient rises on the prompts, the bottom token where it falls, none where nothing is known.

    The memories of the graph have coefficients of a table of their own, which runs of an earlier ffkv lack."""
    values = indexes.values_by_memory(run.files).set_index(["layer", "memory"])
    for rise, end in ((0.3, "top_token"), (-0.3, "bottom_token"), (np.nan, None)):
        nodes = run.table("behaviour_graph_nodes").assign(coefficient=rise)
        its = having(memories=lambda table, rise=rise: table.assign(coefficient=rise), nodes=nodes)
        behaviours = arrange(its, BRANCHES["behaviours"], {})
        tables = [
            block.table for block in behaviours["after"] if block.table and "pushes towards" in block.table.headers
        ]
        assert len(tables) == 2 and all(len(table.rows) for table in tables)
        for table in tables:
            at = table.headers.index("pushes towards")
            for row in table.rows:
                memory = run.memory(row[0].memory)
                id = values.loc[(memory.layer, memory.memory), end] if end else None
                assert row[at] == pushed("" if id is None else run.vocabulary[id], rise)
                assert ("bottom of the value" in row[at]) == (end == "bottom_token")
        (text,) = [block.text for block in behaviours["after"] if block.heading == f"Memories of {NAME}"]
        assert "towards the bottom token where it is negative" in text
