"""A person judges keys in a real browser, by keyboard alone."""

import shutil

import pytest
from accessible import assert_accessible, assert_narrow

from ffkv_annotation.sheets import read_sheet
from ffkv_annotation.step import latest_of
from tests.ffkv_explorer.conftest import running
from tests.ffkv_explorer.test_browser import CHROMIUM, DRIVER, NO_BROWSER, Browser

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=NO_BROWSER)]
UP, DOWN, LEFT, RIGHT, ENTER, SPACE = "\ue013", "\ue015", "\ue012", "\ue014", "\ue007", " "
KEYS = "/r/made/annotate/keys/anna"


@pytest.fixture(scope="module")
def folder(with_sheets, tmp_path_factory):
    """Where the run and its annotations lie. Each test has a person and a sheet of its own."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(with_sheets, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def annotations(folder):
    return folder / "annotations" / "made"


@pytest.fixture(scope="module")
def keys(annotations):
    return read_sheet(annotations, "keys")


@pytest.fixture(scope="module")
def browser(folder):
    with running(folder, results="results/made") as server:
        made = Browser(server)
        made.server = server
        yield made
        made.driver.quit()


@pytest.fixture(autouse=True)
def nothing_is_complained_about(browser):
    yield
    assert [error for error in browser.errors() if "ERR_CONNECTION_REFUSED" not in error] == []


def place(browser) -> str:
    return browser.find("h1").text


def marks(browser) -> set[tuple[str, str]]:
    return {(box.get_attribute("name"), box.get_attribute("value")) for box in browser.all(".marks input:checked")}


def test_ten_keys_by_keyboard_with_a_reload_in_the_middle(browser, annotations, keys):
    order = keys.orders["anna"]
    assert len(order) >= 10
    browser.open(KEYS)
    browser.wait(lambda: place(browser) == f"1 of {len(order)}")
    for number in range(10):
        browser.wait(lambda: place(browser).startswith(f"{number + 1} of"))  # noqa: B023
        # Pattern 1: texts 0, 1 and 3 (by blank, digit and blank), in words, shallow.
        browser.press(SPACE)
        browser.press(DOWN + "1")
        browser.press(DOWN + DOWN + SPACE)
        browser.press("w")
        browser.press(f"ends alike {number}")
        if number == 4:  # in the middle of a word, before anything can have been sent
            expected = marks(browser)
            browser.driver.refresh()
            browser.wait(lambda: place(browser).startswith("5 of"))
            browser.wait(lambda: browser.find("[name='label.0']").get_attribute("value") == "ends alike 4")
            assert marks(browser) == expected == {("mark.0", text) for text in "013"}
            browser.press("w")
            browser.press("\ue010!")  # End, and one more letter
        browser.press(ENTER)
        browser.press("s")
        # Pattern 2 on texts 3 and 4: semantic.
        browser.press(RIGHT)
        browser.press("m" + SPACE)
        browser.press(DOWN + "2" + UP)
        browser.press(ENTER)
    browser.wait(lambda: place(browser).startswith("11 of"))
    said = latest_of(annotations, keys, "person:anna")
    assert {item for item, record in said.items() if record.done} == {*order[:10]}
    for number, item in enumerate(order[:10]):
        first, second = said[item].patterns
        words = f"ends alike {number}" + ("!" if number == 4 else "")
        assert (first.label, first.kind) == (words, "shallow"), item
        assert second.kind == "semantic" and second.label == ""
        # After a reload the first text has the focus again, so pattern 2 is marked there.
        assert first.prefixes == (0, 1, 3) and second.prefixes == ((0, 1) if number == 4 else (3, 4))


def test_changes_are_judged_by_one_key_each(browser, annotations):
    sheet = read_sheet(annotations, "changes")
    browser.open("/r/made/annotate/changes/bert/1")
    for key in "ynu":
        before = place(browser)
        browser.press(key)
        browser.press(ENTER)
        browser.wait(lambda: place(browser) != before)  # noqa: B023
    said = latest_of(annotations, sheet, "person:bert")
    assert [said[item].related for item in sheet.orders["bert"][:3]] == ["true", "false", "unsure"]
    browser.press("p")
    browser.wait(lambda: place(browser).startswith("3 of"))
    assert browser.find("[value=unsure]").is_selected()


def test_a_click_on_a_text_marks_it_and_buttons_work(browser, annotations, keys):
    browser.open("/r/made/annotate/keys/bert/1")
    browser.all(".marks td.text")[2].click()
    assert marks(browser) == {("mark.0", "2")}
    next(button for button in browser.all("button") if button.text == "Another pattern").click()
    browser.wait(lambda: browser.all("[name='label.3']"))
    assert marks(browser) == {("mark.0", "2")}
    next(button for button in browser.all("button") if button.text.startswith("Next")).click()
    browser.wait(lambda: place(browser).startswith("2 of"))
    record = latest_of(annotations, keys, "person:bert")[keys.orders["bert"][0]]
    assert not record.done and record.patterns[0].prefixes == (2,)


PAGES = ["/annotate", "/annotate/keys", f"{KEYS}/1", "/r/made/annotate/changes/anna/1"]


def test_no_page_shuts_anybody_out(browser):
    for path in PAGES:
        browser.open(path)
        assert_narrow(browser.driver)
        assert_accessible(browser.driver)


def test_a_crash_of_the_explorer_loses_nothing_that_was_typed(browser, annotations, keys):
    browser.open("/r/made/annotate/keys/bert/2")
    browser.press("1w")
    browser.press("kept")
    browser.wait(lambda: browser.find("#saved").text == "kept")
    browser.server.process.kill()
    browser.server.process.wait()
    browser.press(" and more")
    browser.wait(lambda: "It stays in this browser" in browser.find("#saved").text)
    record = latest_of(annotations, keys, "person:bert")[keys.orders["bert"][1]]
    assert record.patterns[0].label == "kept" and record.patterns[0].prefixes == (0,)
    kept = browser.driver.execute_script("return Object.values(localStorage).join()")
    assert "kept+and+more" in kept
