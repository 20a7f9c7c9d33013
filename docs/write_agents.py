"""Writes AGENTS.md and docs/llms.txt from the pages, the Makefile and the code: `python docs/write_agents.py`."""

import re
import tomllib
from pathlib import Path

from ffkv.cli import GROUPS
from ffkv_agents.written import TOOLS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
TARGETS = (
    "install",
    "check",
    "test",
    "lint",
    "types",
    "docs",
    "report",
    "reference",
)  # of the Makefile: what a change needs
ASKED = ("Ask a finished run",)  # headings of `ffkv -h` whose commands are listed
HEAD = """# For agents

`python docs/write_agents.py` writes this page from others: change those.

{about}. [docs/architecture.md](docs/architecture.md) says how it is built, and [CONTRIBUTING.md](CONTRIBUTING.md) how to
add to it. [docs/llms.txt](docs/llms.txt) lists all pages.

## Ask a finished run

`ffkv mcp results/demo` serves these tools by the Model Context Protocol ([docs/python.md](docs/python.md#agents)):

{tools}

On the command line:

{commands}

## Change ffkv

`make install` sets up `.venv`. `pytest -q tests/<room>` runs the tests of a room in seconds: the folders of `tests/` have the names of those of `src/`.

{targets}

## Wings

{wings}

## Conventions

{conventions}

## Words

{words}

## Commits

{commits}
"""


def section(page: str, title: str) -> str:
    """The text below a heading of a page, with links that lead on from the root."""
    text = (ROOT / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()
    folder = Path(page).parent
    assert text, f"{page} has no {title}"
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", lambda link: f"]({(folder / link[1]).as_posix()})", text)


def table(*heads: str, rows: dict[str, str]) -> str:
    """A table of two columns."""
    lines = (f"| `{name}` | {about.replace('|', '/')} |" for name, about in rows.items())
    return "\n".join([f"| {' | '.join(heads)} |", "|---|---|", *lines])


def first_sentence(text: str) -> str:
    """The first sentence of a text; its links are plain words. A colon at its end is a full stop."""
    words = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(text.split()))
    return re.split(r"(?<!al\.)(?<=\.)\s", words)[0].rstrip(".:") + "."


def about() -> str:
    """What ffkv is, as its package says it."""
    said: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    return f"ffkv {said[0].lower()}{said[1:]}"


def agents() -> str:
    """The whole AGENTS.md."""
    help_of = dict(re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {f"ffkv {name}": line for heading in ASKED for name, (_, line) in GROUPS[heading].items()}
    tools = {
        name: first_sentence(its["about"]) for name, its in TOOLS.items() if isinstance(its, dict) and "about" in its
    }
    return HEAD.format(
        about=about(),
        tools=table("tool", "what it answers", rows=tools),
        commands=table("command", "what it does", rows=commands),
        targets=table("command", "what it does", rows={f"make {name}": help_of[name] for name in TARGETS}),
        wings=section("docs/architecture.md", "Wings").partition("What a room does")[0].strip(),
        conventions=section("docs/architecture.md", "Conventions"),
        words=section("CONTRIBUTING.md", "Words"),
        commits=section("CONTRIBUTING.md", "Commits and releases").partition("\n\n")[0],
    )


def prose(page: str) -> str:
    """The first paragraph of a page."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    paragraphs = (part.strip() for part in text.split("\n\n")[1:])
    return next(part for part in paragraphs if re.match(r"[A-Za-z`\[]", part))


def llms() -> str:
    """The whole docs/llms.txt: https://llmstxt.org says its form. The groups are those of docs/index.md."""
    index = (DOCS / "index.md").read_text()
    lines, listed = ["# ffkv", "", f"> {about()}."], {"index.md"}
    for group, row in re.findall(r"^\| ([\w ]+) \| (.*) \|$", index, re.MULTILINE):
        lines += ["", f"## {group[0].upper()}{group[1:]}", ""]
        for page in re.findall(r"\]\(([\w-]+\.md)[#)]", row):
            if page not in listed:
                listed.add(page)
                title = (DOCS / page).read_text().partition("\n")[0].removeprefix("# ")
                lines.append(f"- [{title}]({page}): {first_sentence(prose(page))}")
    assert listed == {path.name for path in DOCS.glob("*.md")}, "docs/index.md names every page"
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "AGENTS.md").write_text(agents())
    (DOCS / "llms.txt").write_text(llms())
