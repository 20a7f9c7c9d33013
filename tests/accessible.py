"""Whether a page, in a real browser, shuts anybody out."""

from importlib.resources import files

from support import FULL

# What is asked of a page: all in light colours, and of the dark ones what depends on colours.
ACCESSIBLE = {
    "light": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    "dark": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
}


def assert_accessible(driver) -> None:
    """The page of a driver, all parts open, shuts nobody out. Three rows of each table stay, because the check of a page of
    2,000 rows takes a minute; with `FULL` all."""
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    if not FULL:
        driver.execute_script(
            "document.querySelectorAll('tbody').forEach(body => [...body.rows].slice(3).forEach(row => row.remove()))"
        )
    driver.execute_script(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    driver.set_script_timeout(120)
    for scheme, asked in ACCESSIBLE.items():
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        passed, told = ask_axe(driver, asked)
        assert told == [], scheme
        assert passed > (10 if scheme == "light" else 0)  # the check ran


def assert_narrow(driver) -> None:
    """A narrow screen shows the whole page of a driver."""
    narrow = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    root = "document.documentElement"
    wide = driver.execute_script(f"return {root}.scrollWidth - {root}.clientWidth")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 0


def ask_axe(driver, asked: dict) -> tuple[int, list]:
    """Asks axe, which `assert_accessible` has put into the page. Returns how many rules passed, and what is wrong."""
    found = driver.execute_async_script(
        "axe.run(document, {runOnly: arguments[0], resultTypes: ['violations']}).then(arguments[1])", asked
    )
    told = [(each["help"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found["violations"]]
    return len(found["passes"]), told
