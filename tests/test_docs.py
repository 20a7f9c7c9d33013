"""The pages of the documentation: their links lead somewhere, and what they say of the code is complete."""

import ast
import re
import tomllib
from pathlib import Path

from ffkv.branches.registry import BRANCHES
from ffkv.run.report.registry import FIGURES

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
ROOMS = [path for path in ROOT.glob("src/ffkv/**/__init__.py") if path.parent.name != "ffkv"]
EVERY_ROOM = {"__init__", "__main__", "step", "steps", "branch", "commands", "tables"}  # files that many rooms have


def links(page: Path) -> list[str]:
    """What the links of a page lead to, outside of code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings(subtests):
    for page in PAGES:
        with subtests.test(page=page):
            for link in links(page):
                if re.match(r"https?:|mailto:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = (page.parent / name).resolve() if name else page
                assert target.exists(), f"{page.name} links to {link}"
                assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_page_can_be_reached_from_the_first_one():
    index = ROOT / "docs/index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)} | {index}
    assert {page for page in PAGES if page.parent == index.parent} <= reached


def test_the_tests_that_the_page_on_security_names_are_there():
    named, path = re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", (ROOT / "docs/security.md").read_text()), ""
    assert len(named) > 20
    for file, test in named:
        path = file or path  # the name of a file also holds for the tests that follow without one
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


# What the description of a branch names need not stand in a docstring, too.
IN_REGISTRIES = {*BRANCHES, *FIGURES, *(f"section_{name}" for name in BRANCHES)}


def modules_below(folder: Path, pattern: str) -> set[str]:
    """The names of the modules and of the rooms that a pattern finds, such as "*" or "**/*"."""
    return {path.stem for path in folder.glob(f"{pattern}.py")} | {
        path.parent.name for path in folder.glob(f"{pattern}/__init__.py")
    }


def test_a_room_says_which_modules_and_rooms_it_has(subtests):
    for path in ROOMS:
        with subtests.test(path=path):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            said = {*re.findall(r"`(\w+)`", re.sub(r"`(\w+?)(\d+)` to `\1(\d+)`", _spelled, text))}
            assert modules_below(path.parent, "*") - EVERY_ROOM - IN_REGISTRIES <= said
            assert said <= modules_below(ROOT / "src/ffkv", "**/*") | {"huggingface_hub"}, (
                "it names modules that do not exist"
            )


def _spelled(match: re.Match) -> str:
    return " ".join(f"`{match[1]}{number}`" for number in range(int(match[2]), int(match[3]) + 1))


def test_the_wings_are_named_in_the_order_of_the_contract():
    wings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    table = (ROOT / "docs/architecture.md").read_text().partition("## Wings")[2].partition("What a room does")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(wings)
    assert [name for name in named if name not in ("plan", "workflow")] == wings[2:]
