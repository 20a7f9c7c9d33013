"""A plan as text."""

from ffkv.plan.step import Row
from ffkv.plan.table import as_text

TOTAL = {"seconds": 90.0, "cores": 2, "written": 5e6, "memory": 2e9, "disk_left": 1e9, "memory_left": 4e9}


def text(*rows: Row, not_estimated: tuple[str, ...] = ()) -> list[str]:
    """The lines of a plan of a comparison, which has nothing but rules."""
    rules = [row._asdict() for row in rows]
    plan = {"runs": {}, "comparisons": {"both": rules}, "total": TOTAL, "not_estimated": list(not_estimated)}
    return as_text(plan).splitlines()


DONE, LEFT = Row("both", "first", 0, True), Row("both", "second", 2, False, 1, 1e6, 5e6, 2e9, 90.0)


def test_what_is_done_takes_nothing():
    lines = text(DONE, LEFT)
    assert lines[1].split() == ["jobs", "tokens", "disk", "memory", "per", "job", "time"]
    assert [line.split() for line in lines[2:4]] == [
        ["first", "done"],
        ["second", "2", "1,000,000", "5", "MB", "2", "GB", "1", "min", "30", "s"],
    ]
    assert lines[-3:] == [
        "Time: up to about 1 min 30 s on 2 cores, with nothing else running.",
        "Disk: 5 MB to be written, 1 GB free.",
        "Memory: up to 2 GB per job, 4 GB free.",
    ]


def test_a_plan_without_work_says_so():
    assert text(DONE)[-1] == "Nothing is left to do."
    assert text(DONE, not_estimated=("annotate_agreement",))[-2:] == [
        "Not estimated: annotate_agreement. They read finished runs.",
        "Nothing else is left to do.",
    ]
