"""The way of a person through the explorer, in a real browser."""

import json
import re
import shutil
import time

import pytest
from accessible import assert_accessible, assert_narrow

import ffkv

from .conftest import running

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NO_BROWSER = "there is no chromium or chromedriver (Debian's packages: chromium, chromium-driver)"
pytestmark = [pytest.mark.workflow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=NO_BROWSER)]
PROMPT = "Return+the+name+of+the"
ENTER, ROLE = "\ue007", "#role"
# Every page that has a form of its own.
PAGES = [
    "/", "/r/tiny/", "/r/tiny/?map=agreement&order=number", "/r/tiny/?map=effect", "/r/tiny/memories", "/r/tiny/memories?promotes=the&min_norm=0.1", "/r/tiny/memories?promotes=qqqq", "/r/tiny/m/1/12",
    "/r/tiny/m/0/3?colours=1", "/r/tiny/m/1/12/similar", "/r/tiny/trace", f"/r/tiny/trace?prompt={PROMPT}",
    f"/r/tiny/trace?prompt={PROMPT}&off=L1.3", "/compare", "/r/tiny/m/9/9", "/r/tiny/collections", "/r/tiny/?data=other", "/r/tiny/behaviours",
    "/r/tiny/trace?prompt=The+function+returns&graph=1&wrong=in",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny):
    with running(tiny) as started:
        yield started


class Browser:
    """A browser, and the page that it shows."""

    def __init__(self, server):
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1200,1000",
                         "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):  # fmt: skip
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, Service(DRIVER))
        self.driver.set_page_load_timeout(120)
        self.driver.get(server.address)
        self.base = self.driver.current_url.rstrip("/")

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def find(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def link(self, words: str):
        return self.driver.find_element("link text", words)

    @property
    def text(self) -> str:
        return self.find("main").text

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.base)

    def press(self, keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(keys)

    def wait(self, condition, seconds: float = 60):
        """Waits until something is true, and returns it."""
        from selenium.common import WebDriverException

        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if found := condition():
                    return found
            except WebDriverException:  # the page is being replaced, or the element is not there yet
                if time.monotonic() > until - 1:
                    raise
            time.sleep(0.05)
        raise AssertionError(f"never came: {self.path}: {self.text[:500]}")

    def errors(self) -> list[str]:
        """What the page complained about, but for answers that say what is wrong."""
        entries = self.driver.get_log("browser")
        return [
            entry["message"] for entry in entries if "the server responded with a status of" not in entry["message"]
        ]


@pytest.fixture(scope="module")
def browser(server):
    made = Browser(server)
    yield made
    made.driver.quit()


@pytest.fixture(autouse=True)
def nothing_is_complained_about(browser):
    yield
    assert browser.errors() == []


def test_the_token_opens_the_explorer_and_leaves_the_address(browser):
    assert browser.path == "/"
    assert "Runs" in browser.text
    assert browser.driver.execute_script("return document.cookie") == ""  # no script can read it


@pytest.mark.parametrize("beginning", ["", "/~of-an-explorer-before"])
def test_a_link_leads_in_whatever_its_beginning(browser, beginning):
    browser.driver.get(browser.base.partition("/~")[0] + f"{beginning}/r/tiny/m/0/1?all=1#main")
    browser.wait(lambda: browser.path == "/r/tiny/m/0/1?all=1#main")
    assert "L0.1" in browser.text


def test_a_search_leads_to_a_memory_and_the_back_button_returns(browser):
    browser.open("/r/tiny/memories")
    browser.find("#promotes").send_keys("the")
    browser.wait(lambda: "promotes=the" in browser.path)  # the list follows what is typed
    browser.wait(lambda: "promoted token" in browser.text)
    name = browser.find(".list tbody th a").text
    browser.find(".list tbody th a").click()
    browser.wait(lambda: browser.find("h1").text == name)
    browser.driver.back()
    browser.wait(lambda: browser.find("#promotes").get_attribute("value") == "the" and name in browser.text)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["/", "the", ENTER], "/memories?promotes=the"),
        (["/", "L1.12", ENTER], "/m/1/12"),
        ([ROLE, "e", ENTER], "/memories?role=enrichment"),
    ],
)
def test_a_question_takes_three_keys_or_clicks(browser, keys, found):
    """Those of docs/recipes.md. A role is chosen by its first letter."""
    browser.open("/r/tiny/trace" if keys[0] == "/" else "/r/tiny/memories")
    for key in keys:
        if key == ROLE:
            browser.driver.execute_script("arguments[0].focus()", browser.find(ROLE))
        else:
            browser.press(key)
    browser.wait(lambda: browser.path.partition("&")[0].endswith(found))
    assert browser.all("#results, #positive") and "went wrong" not in browser.text


def test_a_prompt_is_traced_with_three_clicks(browser):
    browser.open("/r/tiny/memories")
    browser.link("Trace").click()
    browser.find("#prompt").send_keys("Return the name of the")
    browser.find("main form button").click()
    assert browser.wait(lambda: browser.all("#memories table tbody tr"))


@pytest.fixture(scope="module")
def firing(tiny) -> list[str]:
    """The pages of the memories that fire most often. Which these are depends on the text of the installed Python."""
    most = ffkv.open(tiny / "results/tiny").memories(sort="firing_rate")
    return [f"/r/tiny/m/{layer}/{memory}" for layer, memory in zip(most["layer"], most["memory"])]


def test_colours_show_the_value_on_focus(browser, firing):
    browser.open(firing[0])
    browser.link("Colour every token").click()
    browser.wait(lambda: browser.all(".t.last"))
    token = browser.find(".t.last")
    assert token.get_attribute("title").startswith("coefficient ")
    colour = token.value_of_css_property("background-color")
    assert colour not in ("rgba(0, 0, 0, 0)", "rgba(255, 255, 255, 1)")
    assert token.value_of_css_property("text-decoration-thickness") == "4px"  # the second channel
    browser.driver.execute_script("arguments[0].focus()", token)
    browser.press("\ue014")  # arrow right
    assert browser.driver.switch_to.active_element.get_attribute("class").startswith("t ")
    shown = "return getComputedStyle(document.activeElement, '::after').content"
    assert "coefficient" in browser.driver.execute_script(shown)


def test_colours_come_and_go_without_another_page(browser, firing):
    browser.open(firing[1])
    watch = """window.told = [];
        new MutationObserver(() => told.push(document.getElementById('status').textContent))
            .observe(document.getElementById('status'), {childList: true});"""
    browser.driver.execute_script(watch)
    browser.link("Colour every token").click()
    browser.wait(lambda: browser.all("#positive .t.last"))
    assert browser.path == f"{firing[1]}?colours=1#positive"
    assert browser.driver.execute_script("return document.activeElement.id") == "positive"
    told = browser.wait(lambda: (said := browser.driver.execute_script("return window.told"))[1:] and said)
    assert told[0].startswith("Computing the coefficient of every token.") and told[-1] == ""
    assert bool(browser.all("#negative .t.last")) == bool(browser.all("#negative tbody"))  # both signs
    browser.link("Without colours").click()
    browser.wait(lambda: not browser.all(".t"))
    assert browser.path == f"{firing[1]}#positive" and browser.driver.execute_script("return 'told' in window")


def test_what_is_wrong_with_colours_is_said_on_the_page(browser, firing):
    browser.open(firing[1])
    browser.driver.execute_script(
        "document.querySelector('a[data-swap][href*=colours]').search = '?colours=1&data=other'"
    )
    browser.link("Colour every token").click()
    browser.wait(lambda: "This link is about other data" in browser.find("#status").text)
    assert browser.all("#positive tbody tr") and browser.path == firing[1]


def test_similar_memories_load_into_the_page(browser):
    browser.open("/r/tiny/m/1/12")
    browser.link("Find similar memories").click()
    browser.wait(lambda: "By value" in browser.find("#similar").text)
    assert browser.path == "/r/tiny/m/1/12"


def test_a_memory_is_switched_off_and_the_prediction_changes(browser):
    browser.open("/r/tiny/")
    browser.link("Trace a prompt").click()
    browser.find("#prompt").send_keys("Return the name of the")
    browser.find("main form button").click()
    browser.wait(lambda: browser.all("#final"))
    link = browser.wait(lambda: next(each for each in browser.all("#memories table a") if each.text == "off"))
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    browser.wait(lambda: browser.all("#effect"))
    rows = [row.text.split() for row in browser.all("#effect tbody tr")]
    assert any(row[-1] not in ("0", "−0") for row in rows)
    assert "switched off" in browser.text and "off=L" in browser.path
    browser.driver.back()
    browser.wait(lambda: browser.all("#final") and not browser.all("#effect"))


def test_the_keyboard_alone_is_enough(browser):
    browser.open("/r/tiny/memories?promotes=the")
    browser.press("j")
    browser.press("j")
    rows = browser.all(".list tbody th a")
    assert browser.driver.switch_to.active_element == rows[1]
    name = rows[1].text
    browser.press("\ue007")  # Enter
    browser.wait(lambda: browser.find("h1").text == name)
    layer, index = map(int, name[1:].split("."))
    browser.press("j")
    browser.wait(lambda: browser.find("h1").text == f"L{layer}.{index + 1}")
    browser.press("k")
    browser.wait(lambda: browser.find("h1").text == name)
    browser.press("]" if layer == 0 else "[")
    browser.wait(lambda: browser.find("h1").text == f"L{1 - layer}.{index}")
    for words in ("★ starred", "☆ star"):
        browser.press("s")
        browser.wait(lambda words=words: browser.find("[data-key=s]").text == words)
    browser.press("?")
    browser.wait(lambda: browser.find("#keys-help").is_displayed())
    browser.press("\ue00c")  # Escape
    browser.wait(lambda: not browser.find("#keys-help").is_displayed())
    browser.press("/")
    box = browser.driver.switch_to.active_element
    assert box.get_attribute("id") == "jump"
    box.send_keys("L0D3\ue007")
    browser.wait(lambda: browser.find("h1").text == "L0.3")


def test_the_map_leads_to_memories_by_keyboard(browser):
    browser.open("/r/tiny/?order=number")
    browser.driver.execute_script("document.querySelector('.cells tbody a').focus()")
    browser.press("\ue014")  # arrow right
    browser.press("\ue015")  # arrow down
    cell = browser.driver.switch_to.active_element
    said = cell.get_attribute("title")
    shown = "return getComputedStyle(document.activeElement, '::after').content"
    assert said and said in browser.driver.execute_script(shown)
    browser.press("\ue007")  # Enter
    browser.wait(lambda: re.match(r"/r/tiny/(memories\?layer=1&|m/1/)", browser.path))


def test_another_map_comes_without_another_page(browser):
    browser.open("/r/tiny/")
    browser.driver.execute_script("window.same = true")
    browser.link("firing rate").click()
    browser.wait(lambda: "memories by number" in browser.find("#map").text)
    assert browser.path == "/r/tiny/?map=firing#map"
    assert browser.driver.execute_script("return window.same")


@pytest.mark.parametrize("scheme, behind", [("light", "255,255,255"), ("dark", "29,35,43")])  # as the page: --sheet
def test_the_claims_are_drawn_in_the_colours_of_the_page(browser, scheme, behind):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.open("/r/tiny/")
    corner = """const image = document.querySelector("img.drawing");
        if (!image.complete || !image.naturalWidth) return "";
        const canvas = Object.assign(document.createElement("canvas"), {width: 9, height: 9}), pen = canvas.getContext("2d");
        pen.drawImage(image, 0, 0);
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).join()"""
    assert browser.wait(lambda: browser.driver.execute_script(corner)) == behind


def test_tab_reaches_everything_and_the_focus_shows(browser):
    browser.open("/r/tiny/m/1/12")
    seen = []
    for _ in range(12):
        browser.press("\ue004")  # Tab
        element = browser.driver.switch_to.active_element
        seen.append(element.text or element.get_attribute("id"))
        assert element.value_of_css_property("outline-style") == "solid", element.get_attribute("outerHTML")
    assert seen[:4] == ["To the text", "Runs", "tiny", "Layer 1"]
    assert {"jump", "Find", "Memories", "Trace"} <= {*seen}


def test_nothing_leaves_this_machine(browser):
    browser.driver.get_log("performance")
    for path in PAGES[:6]:
        browser.open(path)
    events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith((browser.base.partition("/~")[0], "data:")) for url in asked)


def test_a_graph_zooms_moves_tells_and_pins(browser):
    from selenium.webdriver.common.keys import Keys

    browser.open("/r/tiny/trace?prompt=The+function+returns&graph=1&wrong=in")
    drawing, told = browser.find("svg.graph"), browser.find("#graph-told")

    def view() -> list[float]:
        box = "const box = arguments[0].viewBox.baseVal; return [box.x, box.y, box.width, box.height]"
        return browser.driver.execute_script(box, drawing)

    whole = view()
    ends = [edge.get_attribute("data-ends").split()[0] for edge in browser.all("[data-ends]")]
    node = browser.find(f"[data-node='{ends[0]}']")
    title = node.find_element("css selector", "title").get_attribute("textContent")

    browser.find(".scroll:has(> svg.graph)").click()
    browser.press("+")
    assert view()[2:] == pytest.approx([size / 1.5 for size in whole[2:]]) and "zoomed" in drawing.get_attribute(
        "class"
    )
    before = view()
    browser.press(Keys.ARROW_RIGHT)
    assert view()[0] == pytest.approx(min(before[0] + before[2] / 8, whole[2] - before[2]))  # up to the edge
    browser.press("0")
    assert view() == whole

    browser.driver.execute_script("arguments[0].focus()", node)
    assert title in told.text and " to the answer: " in told.text  # the node, then what it does
    assert len(browser.all("path.lit")) == ends.count(ends[0]) < len(ends)
    browser.press("p")
    browser.find("#position").click()  # the focus goes elsewhere
    assert title in told.text and len(browser.all(".pinned")) == 1
    browser.find(f"[data-node='{ends[1]}'] circle").click()  # the mark pins, the name leads to the memory
    assert len(browser.all(".pinned")) == 2 and "graph=1" in browser.path
    browser.find("#graph-tools [value=Escape]").click()
    assert not browser.all(".pinned") and "dim" not in drawing.get_attribute("class").split()
    browser.find(f"[data-node='{ends[1]}'] text").click()
    browser.wait(lambda: "/m/" in browser.path)


@pytest.mark.many
@pytest.mark.parametrize("path", PAGES)
def test_no_page_shuts_anybody_out(browser, path):
    browser.open(path)
    assert_narrow(browser.driver)
    assert_accessible(browser.driver)


def test_without_the_cookie_the_browser_sees_only_how_to_get_in(browser):
    cookies = browser.driver.get_cookies()
    browser.driver.delete_all_cookies()
    browser.open("/r/tiny/")
    assert "The explorer answers only whoever started it" in browser.text
    for cookie in cookies:
        browser.driver.add_cookie(cookie)
