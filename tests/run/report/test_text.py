import numpy as np

from ffkv.run.results.text import (
    MINUS,
    change,
    column,
    duration,
    ending,
    number,
    percent,
    percents,
    rounded,
    token,
    visible,
)

SHOWN = {
    "<b>&": "&lt;b&gt;&amp;",
    "naïve 数 שלום": "naïve 数 שלום",
    **{each: f'<span class="escape">{spelled}</span>' for each, spelled in (
        ("\n", r"\n"), ("\x00", r"\x00"), ("\u202e", r"\u202e"), ("\u00a0", r"\xa0"), ("\U000e0001", r"\U000e0001"))},
}  # fmt: skip


def test_text_is_escaped_and_isolated_and_what_cannot_be_seen_is_spelled_out():
    assert {text: visible(text) for text in SHOWN} == {text: f"<bdi>{shown}</bdi>" for text, shown in SHOWN.items()}


def test_blanks_of_a_token_show_and_of_a_long_text_the_end_stays():
    assert token(" the") == "<bdi>␣the</bdi>"
    assert ending("abcdef", 3) == "<bdi>…def</bdi>"
    assert ending("abc", 3) == "<bdi>abc</bdi>"


WRITTEN = {
    percent: {0: "0\u00a0%", 1: "100\u00a0%", 0.5: "50\u00a0%", 0.1234: "12\u00a0%", -0.0221: "−2.2\u00a0%", 0.9997: "99.9\u00a0%", 0.996: "99.6\u00a0%", 0.0996: "10\u00a0%", 0.00123: "0.12\u00a0%", -0.999: "−99.9\u00a0%", 0.000999: "0.10\u00a0%",
              0.0000037: "0.00037\u00a0%", np.nan: "–"},
    number: {-np.inf: "-∞", np.inf: "∞", 0: "0", 4096: "4,096", 1234567.0: "1,234,567", 0.25: "0.2500", 1234.56: "1,235",
             3e-9: "3e-09", np.nan: "–"},
    rounded: {0: "0", 0.5: "0.50", 12.34: "12", 1234.5: "1,234", -0.00688: "−0.0069", 2.16e-5: "0.000022",
                 -2.16e-9: "−2.2e−09", 9.96: "10", 5: "5", np.nan: "–"},
    change: {-12.34: "−12\u00a0%", 99.94: "+99.9\u00a0%", 1: "+1\u00a0%", 0: "0\u00a0%", np.nan: "–"},
    duration: {0.2: "under 1 s", 41: "41 s", 725: "12 min 5 s", 12000: "3 h 20 min"},
}  # fmt: skip


def test_single_numbers(subtests):
    for write, cases in WRITTEN.items():
        with subtests.test(write=write.__name__):
            assert {value: write(value) for value in cases} == cases


def test_numbers_of_a_column_have_equally_many_decimals():
    """The number in the middle has three digits: of 0.000221, 0.236 and 0.26 it is 0.236."""
    assert column([-0.26, -0.236, 0.000221]) == [f"{MINUS}0.260", f"{MINUS}0.236", "<0.001"]
    assert column([-0.0001, 0, np.nan, 5.25, 12], places=2) == [f">{MINUS}0.01", "0.00", "–", "5.25", "12.00"]
    assert column([1200, 3, 0]) == ["1,200", "3", "0"] and column([]) == []
    assert column([0.5], like=[0.5, 1234.5, 2345.5]) == ["<1"]  # 1234.5 has four digits before its point
    assert column([0.0778, 0.51, 1e-5], places=2) == ["0.08", "0.51", "<0.01"]
    assert column([2e-9, 3e-9]) == ["<0.000001", "<0.000001"]


def test_percentages_of_a_column_have_equally_many_decimals():
    assert percents([0.15, 0.122, np.nan, 0.0003]) == ["15.0\u00a0%", "12.2\u00a0%", "–", "<0.1\u00a0%"]
