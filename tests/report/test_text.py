import numpy as np
import pytest

from ffkv.run.results.text import MINUS, change, column, duration, ending, number, percent, percents, token, visible


def test_text_is_escaped_and_isolated():
    assert visible("<b>&") == "<bdi>&lt;b&gt;&amp;</bdi>"


@pytest.mark.parametrize(
    ("character", "shown"),
    [("\n", r"\n"), ("\x00", r"\x00"), ("\u202e", r"\u202e"), ("\u00a0", r"\xa0"), ("\U000e0001", r"\U000e0001")],
)
def test_what_cannot_be_seen_is_spelled_out(character, shown):
    assert visible(character) == f'<bdi><span class="escape">{shown}</span></bdi>'


def test_letters_of_other_scripts_stay():
    assert visible("naïve 数 שלום") == "<bdi>naïve 数 שלום</bdi>"


def test_blanks_of_a_token_show():
    assert token(" the") == "<bdi>␣the</bdi>"


def test_of_a_long_text_the_end_stays():
    assert ending("abcdef", 3) == "<bdi>…def</bdi>"
    assert ending("abc", 3) == "<bdi>abc</bdi>"


@pytest.mark.parametrize(
    ("share", "written"),
    [(0, "0"), (1, "100"), (0.5, "50"), (0.1234, "12.3"), (0.00123, "0.12"), (0.0000037, "0.00037")],
)
def test_percent(share, written):
    assert percent(share) == f"{written}\u00a0%"


def test_what_is_not_there_is_a_dash():
    assert percent(float("nan")) == number(float("nan")) == change(float("nan")) == "–"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("-inf"), "-∞"),
        (float("inf"), "∞"),
        (0, "0"),
        (4096, "4,096"),
        (1234567.0, "1,234,567"),
        (0.25, "0.2500"),
        (1234.56, "1,235"),
        (3e-9, "3e-09"),
    ],
)
def test_number(value, written):
    assert number(value) == written


def test_a_change_has_its_sign():
    assert change(-12.34) == "−12.3\u00a0%"
    assert change(1) == "+1.0\u00a0%"


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.2, "under 1 s"), (41, "41 s"), (725, "12 min 5 s"), (12000, "3 h 20 min")]
)
def test_duration(seconds, written):
    assert duration(seconds) == written


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
