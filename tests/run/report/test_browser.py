"""The report of a hostile corpus in a real browser: nothing runs, nothing is fetched, nothing leaves its place."""

import base64
import html
import json
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest
from accessible import ask_axe, assert_accessible
from click.testing import CliRunner
from support import FULL

from ffkv.base.terminal import plain
from ffkv.run.commands import report
from ffkv.run.report.step import write_report
from ffkv.run.results.run import open as open_run
from tests.run.report.conftest import write_results

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian's package: chromium)"),
]
TITLE = "</title><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\"> \u202eשלום"
# What a page that runs its text would do: a script, a handler, an image, a style sheet from the network.
CARELESS = """<!DOCTYPE html><title>calm</title><body><p>{}</p>
<script>document.title='pwned'</script><img src="http://evil.example/x">"""
# Opens every part of a page in a frame and measures it.
HARNESS = """<!DOCTYPE html><body><iframe id="page" src="{}" style="width:{}px;height:900px;border:0"></iframe><script>
document.getElementById('page').onload = event => {{
  const page = event.target.contentDocument, root = page.documentElement;
  page.querySelectorAll('details').forEach(each => each.open = true);
  const outside = [...page.querySelectorAll('td bdi, th bdi')].filter(each => {{
    const inner = each.getBoundingClientRect(), outer = each.closest('td, th').getBoundingClientRect();
    return inner.left < outer.left - 1 || inner.right > outer.right + 1;
  }});
  const texts = [...page.querySelectorAll('bdi')];
  document.body.dataset.found = JSON.stringify({{
    title: page.title, wide: root.scrollWidth - root.clientWidth, texts: texts.length,
    outside: outside.map(each => each.textContent.slice(0, 80)),
    offenders: [...page.querySelectorAll('body *')].filter(each =>
      each.getBoundingClientRect().right > root.clientWidth + 1 && !each.closest('.scroll, pre, .drawing')
    ).map(each => each.tagName + '.' + each.getAttribute('class') + ' ' + each.textContent.slice(0, 60)).slice(0, 8),
    mixed: texts.filter(each => getComputedStyle(each).unicodeBidi !== 'isolate').length,
  }});
}};
</script>"""


@pytest.fixture
def canary():
    """A server in place of every host that the hostile texts name; the list of what was asked of it."""
    server, asked = socket.create_server(("127.0.0.1", 0)), []

    def listen():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(2)
                asked.append(connection.recv(200))

    threading.Thread(target=listen, daemon=True).start()
    yield server.getsockname()[1], asked
    server.close()


@pytest.fixture
def browse(canary, tmp_path):
    """Opens a file in chromium; returns what has become of its document. Hosts are the canary, or unknown."""

    def open_page(path, *options: str) -> str:
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet]
        command += [
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--host-resolver-rules=MAP *.example 127.0.0.1:{canary[0]},MAP * ~NOTFOUND",
        ]
        command += ["--virtual-time-budget=5000", *options, "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return open_page


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory, folder):
    """The report of a run whose texts and settings are hostile."""
    results = tmp_path_factory.mktemp("hostile") / "results"
    shutil.copytree(folder, results)
    settings = json.loads((results / "settings.json").read_text())
    settings["report"]["title"], settings["corpus"]["train"] = TITLE, [TITLE]
    (results / "settings.json").write_text(json.dumps(settings))
    output = results.parent / "reports" / "index.html"
    arguments = f"--results {results} --output {output}".split()
    outcome = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return output


def test_the_browser_and_the_canary_notice_a_careless_page(browse, canary, tmp_path):
    (tmp_path / "careless.html").write_text(CARELESS.format("x"))
    assert "<title>pwned</title>" in browse(tmp_path / "careless.html")
    assert any(b"evil.example" in request for request in canary[1])


def test_no_text_of_the_corpus_runs_or_fetches_anything(browse, canary, hostile_page, hostile):
    dom = browse(hostile_page)
    assert f"<title>{html.escape(plain(TITLE), quote=False)}: " in dom
    assert dom.count("<script") == 1 and dom.count("<input") == dom.count('<label class="filter">')  # the page's own
    assert not re.search(r"<(img|iframe|link|base|object|embed|textarea)\b", dom)
    assert not re.search(r"<[^<>]*\son\w+=", re.sub(r'="[^"]*"', "", dom))  # what is in quotes is text
    assert dom.count("<style") == dom.count("</style>") == 1 + len(re.findall(r"<defs>\s*<style", dom))
    assert "&lt;svg/onload=fetch" in dom
    assert not {"\u202e", "\u202d"} & set(dom.partition("<body>")[2])  # such signs are spelled out
    assert canary[1] == []


def test_a_policy_stops_what_would_slip_through(browse, canary, hostile_page, tmp_path):
    """The same page with its text unescaped: the browser itself refuses to run and fetch."""
    slipped = hostile_page.read_text().replace("<h1>", CARELESS.partition("<p>")[2] + "<h1>")
    (tmp_path / "slipped.html").write_text(slipped)
    assert "<title>pwned</title>" not in browse(tmp_path / "slipped.html")
    assert canary[1] == []


@pytest.mark.parametrize("width", [1100, 420])
def test_texts_stay_in_their_cells_and_the_page_in_its_width(browse, hostile_page, tmp_path, width):
    (tmp_path / "harness.html").write_text(HARNESS.format(hostile_page.as_uri(), width))
    dom = browse(tmp_path / "harness.html", "--allow-file-access-from-files", "--disable-web-security")
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', dom)[1]))
    assert found["texts"] > 500
    assert found["mixed"] == 0
    assert found["outside"] == []
    assert found["wide"] == 0, found["offenders"]


def test_figures_opened_alone_run_and_fetch_nothing(browse, canary, hostile_page):
    figure = hostile_page.parent / "figures" / "figure_2.svg"
    assert "figure_2-description" in browse(figure)
    for path in figure.parent.iterdir():
        assert not re.search(r"<script|<foreignObject|<!ENTITY|<!DOCTYPE|<image|\son\w+=", path.read_text())
        assert not re.search(r'(href|src)="(?!#)', path.read_text())
    assert canary[1] == []


@pytest.fixture(scope="module")
def browser():
    """A browser that is asked by a program."""
    if not DRIVER:
        pytest.skip("there is no chromedriver (Debian's package: chromium-driver)")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1300,900"):
        options.add_argument(f"--{argument}")
    driver = Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small page."""
    folder = tmp_path_factory.mktemp("small")
    write_report(open_run(write_results(folder / "results", layers=2, report={"cards": 2})), folder / "index.html")
    return folder / "index.html"


@pytest.fixture
def driver(browser, small):
    """The browser with a small page, all parts open."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    if browser.current_url != small.as_uri():
        browser.get(small.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    return browser


@pytest.mark.many
@pytest.mark.parametrize("layers", [30, 80] if FULL else [80])
def test_the_report_of_a_deep_model_is_short(browser, tmp_path, layers):
    gated = layers == 30  # of a gated model each example has more to show
    unasked: dict = {"behaviours": {}, "concepts": {}, "routing": {}, "dictionary": {}, "values": {"readout": "head"}}
    write_report(open_run(write_results(tmp_path / "results", layers, gated=gated, **unasked)), tmp_path / "index.html")
    browser.get((tmp_path / "index.html").as_uri())
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert len(browser.find_elements("css selector", ".card[open]")) == 1
    assert browser.execute_script("return document.documentElement.scrollHeight") <= 20_000
    assert browser.execute_script("return document.querySelectorAll('*').length") <= 25_000
    assert printed_pages(browser) <= 25
    narrow_claims(browser, size)


def printed_pages(browser) -> int:
    """The number of pages of the document that the browser prints."""
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", printed))


def narrow_claims(browser, size) -> None:
    """At 390 pixels each row of the claims and of the summary is a block in which everything is on the screen."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"width": 390})
    right = "return Math.max(...[...document.querySelectorAll('.claims b, .claims td, .summed td')].map(each => each.getBoundingClientRect().right))"
    assert 100 < browser.execute_script(right) <= 390
    for table in (".claims", ".summed"):
        assert (
            style(browser, f"{table} tr", "display") == "block"
            and style(browser, f"{table} thead", "display") == "none"
        )


def emulate(driver, media: str = "", scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def style(driver, selector: str, name: str) -> str:
    return driver.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).{name}")


def test_figures_are_drawn_in_the_colours_of_the_page(driver):
    for scheme, text, sheet in (("light", "rgb(29, 37, 48)", "rgb(255, 255, 255)"), ("dark", "rgb(228, 232, 238)", "rgb(29, 35, 43)")):  # fmt: skip
        emulate(driver, scheme=scheme)
        assert style(driver, "#training text", "fill") == text
        # What lies behind the figure: its own sheet would hide the shadow that says that more is to be scrolled to.
        assert style(driver, "#training .drawing", "backgroundColor") == sheet
        assert style(driver, "#training path", "fill") == "none"


def test_the_contents_stay_beside_the_text_where_there_is_room(driver):
    emulate(driver)
    place = "return document.querySelector('nav').getBoundingClientRect().toJSON()"
    driver.execute_script("window.scrollTo({top: 5000, behavior: 'instant'})")
    found = driver.execute_script(place)
    assert found["top"] == 40 and found["bottom"] <= 900
    driver.set_window_size(1100, 900)
    assert style(driver, "nav", "position") == "static"
    driver.set_window_size(1300, 900)


def test_a_print_is_light_and_without_what_leads_elsewhere(driver):
    emulate(driver, "print", "dark")
    assert style(driver, "nav", "display") == style(driver, ".links", "display") == "none"
    assert style(driver, "#training text", "fill") == "rgb(29, 37, 48)"
    assert style(driver, "figure .scroll", "overflow") == "visible"
    assert style(driver, ".page", "marginTop") == "0px"  # else the first line would be cut
    driver.execute_script("document.querySelector('.card').open = false")
    assert style(driver, ".card", "display") == "block"
    assert style(driver, ".card > summary", "display") == "list-item"
    driver.execute_script("document.querySelector('.card').open = true")
    emulate(driver)


def test_the_link_to_a_definition_opens_it(driver):
    emulate(driver)
    opened = "return document.querySelector('#figure_4-definition').closest('details').open"
    driver.execute_script("document.querySelector('#figure_4 .method').open = false")
    assert not driver.execute_script(opened)
    driver.execute_script("document.querySelector('a[href=\"#figure_4-definition\"]').click()")
    assert driver.execute_script(opened)


PLACE = """
const [panel, share] = [document.querySelectorAll(arguments[0] + ' .hover')[0], arguments[1]];
panel.scrollIntoView({block: 'center', behavior: 'instant'});
const box = panel.getBoundingClientRect();
return document.elementFromPoint(box.left + share * box.width, box.top + box.height / 2).textContent;
"""


def test_a_layer_of_a_figure_tells_its_values_where_the_pointer_is(driver):
    for share, layer in ((0.25, 0), (0.75, 1)):
        told = driver.execute_script(PLACE, "#figure_4", share).splitlines()
        assert told[0] == f"layer {layer}" and {line.partition(":")[0] for line in told} >= {
            "values and their keys",
            "any token",
        }


def column_of(driver, place: int) -> list[str]:
    rows = "document.querySelectorAll('#predictive ~ .scroll')[0].querySelectorAll('tbody tr:not([hidden])')"
    return driver.execute_script(f"return [...{rows}].map(row => row.cells[{place}].textContent)")


def test_a_table_is_sorted_and_filtered_as_one_with_the_rows_that_are_closed(driver):
    head = "#predictive ~ .scroll thead th:nth-child({})"
    (before, named), rest = (
        (column_of(driver, place) for place in (2, 0)),
        driver.find_elements("css selector", "#predictive ~ .rest"),
    )
    assert rest
    button = driver.find_element("css selector", head.format(3) + " button")
    found = []
    for way in ("descending", "ascending", None):
        driver.execute_script("arguments[0].click()", button)
        assert driver.find_element("css selector", head.format(3)).get_attribute("aria-sort") == way
        found.append([float(text.split()[0]) for text in column_of(driver, 2)])
    assert found[0] == sorted(found[0], reverse=True) and found[1] == sorted(found[1])
    assert len(found[2]) > len(before) and column_of(driver, 2)[: len(before)] == before  # the order of the page
    field = driver.find_element("css selector", "#predictive ~ .filter input")
    field.send_keys(named[3])
    assert column_of(driver, 0) and all(named[3] in name for name in column_of(driver, 0))
    assert driver.find_element("css selector", "#predictive ~ .filter output").text.endswith(f"of {len(found[2])} rows")
    driver.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", field)
    assert len(column_of(driver, 0)) == len(found[2])


def test_the_contents_mark_the_place_and_a_name_opens_its_card(driver):
    driver.execute_script("document.querySelector('#figure_4').scrollIntoView({behavior: 'instant'})")
    marked = "return [...document.querySelectorAll('nav [aria-current]')].map(each => each.hash)"
    assert settled(driver, marked, ["#figure_4"]) == ["#figure_4"]
    driver.execute_script("document.querySelectorAll('.card').forEach(each => each.open = false)")
    link = driver.execute_script("return document.querySelector('td a[href^=\"#L\"]')")
    driver.execute_script("arguments[0].click()", link)
    (opened,) = driver.execute_script(
        "return [...document.querySelectorAll('.card[open] .key')].map(each => each.textContent)"
    )
    assert opened == link.get_attribute("hash")[1:]


def settled(driver, script: str, wanted):
    """What a script returns, once it is what is wanted; browsers observe places after the next frame."""
    for _ in range(50):
        if (found := driver.execute_script(script)) == wanted:
            break
        time.sleep(0.1)
    return found


def test_a_command_is_copied_or_at_least_chosen(driver):
    chosen = "document.querySelector('.copy').click(); return String(getSelection())"
    assert driver.execute_script(chosen).startswith("ffkv explore results/")


@pytest.mark.many
def test_the_report_shuts_nobody_out(driver):
    """The last one, because it takes rows away. What scrolls on a narrow screen alone is reached by the keyboard, too."""
    assert_accessible(driver)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    passed, told = ask_axe(driver, {"type": "rule", "values": ["scrollable-region-focusable"]})
    assert passed and told == []
