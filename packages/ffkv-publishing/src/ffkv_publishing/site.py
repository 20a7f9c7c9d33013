"""Finished reports as a static site: a folder that GitHub Pages, a static Space or any other server shows as it is.

    index.html                       all reports, comparisons, memories and exports
    reports/<run>/index.html         a report, with `figures/`, `verdicts.csv`, and `memories/` if the run is there
    reports/comparisons/<name>/      a comparison
    exports/<name>/                  an export

Pages name each other by relative addresses, so that the site opens from a disk and below any address.
"""

import base64
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, find, is_file, read_json, refuse_strange_entries
from ffkv.base.terminal import in_bytes
from ffkv.run.export.step import FILE
from ffkv.run.report.overview import corpus_name, model_name
from ffkv.run.report.page_tables import Cell, PageTable
from ffkv.run.report.step import write_report
from ffkv.run.report.verdicts import HOLDS
from ffkv.run.report.wording import make_environment
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, token, visible
from ffkv_explorer.page_memory import export
from ffkv_explorer.shelf import open_shelf

TEXTS = {".html", ".csv", ".svg", ".json", ".jsonl", ".md", ".txt", ".yaml", ".yml", ".js", ".css"}
EMBEDDED_FILE = re.compile(rb"(;base64,)([A-Za-z0-9+/]+=*)")
PATH_END = rb"((?:/[^\s\"'<>,;:&()]+)*)"  # what goes on behind the folder that a path begins with
# What a static Space of Hugging Face reads. Other hosts show index.html without it.
README = "---\ntitle: {title}\nsdk: static\napp_file: index.html\n---\n\nReports of ffkv {version}. Open index.html.\n"
ALLOWED = {
    "file": (100e6, "GitHub takes no file of more than 100 MB"),
    "site": (1e9, "GitHub Pages shows at most 1 GB"),
}


HEADERS = {  # of the tables of the first page
    "Reports": ["report", "model", "text", "claims that hold", "pages of memories"],
    "Comparisons": ["comparison"],
    "Memories": ["memory", "run", "its value promotes", "its key detects"],
    "Exports": ["export", "format", "run"],
}
Rows = Mapping[str, list[list[Cell]]]  # of these tables
LINK = Markup('<a href="{}">{}</a>')


def write_site(
    folder: Path, reports: Sequence[Path], exports: Sequence[Path], memories: Sequence[str], title: str
) -> list[str]:
    """Writes a site into a folder that does not exist yet.

    Args:
        folder: the folder.
        reports: folders of reports, each with an index.html. If results/<name> is beside the folder reports, the report is written again,
            with pages of memories, to which it leads; any other one is copied.
        exports: folders that `ffkv export` wrote.
        memories: names of the memories that have pages, in each run; none for those that a report shows.
        title: heading of the first page.
    Returns:
        Sentences: how large the site is, and what hosts do not take of it.
    Raises:
        UserError: a folder is no report or export, two have one name, or a run is damaged.
    """
    folder.mkdir()
    rows: Rows = {heading: [] for heading in HEADERS}
    secret = {Path.home(), Path.cwd(), *(each.resolve() for each in exports)}
    for report in reports:
        secret |= _add_report(rows, folder, report, memories)
    for each in exports:
        facts, target = read_json(each / FILE) if exists(each / FILE) else {}, folder / "exports" / each.resolve().name
        if not facts.get("finished"):
            raise UserError(
                f"{each} is no finished export. Name a folder that `ffkv export` wrote, or start its command again."
            )
        _copy(each, target)
        about = [visible(str(facts["identity"]["format"])), visible(str(facts["run"]))]
        rows["Exports"].append([LINK.format(f"exports/{target.name}/{FILE}", target.name), *about])
    environment = make_environment(("ffkv_publishing", "."), ("ffkv.run.report", "."))
    environment.filters["linked"] = lambda cell: cell
    tables = [PageTable(name, HEADERS[name], [False] * len(HEADERS[name]), own) for name, own in rows.items() if own]
    page = environment.get_template("site.html").render(title=title, version=ffkv.__version__, tables=tables)
    (folder / "index.html").write_text(page, encoding="utf-8")
    (folder / "README.md").write_text(README.format(title=repr(title), version=ffkv.__version__), encoding="utf-8")
    (folder / ".nojekyll").touch()  # else GitHub Pages leaves files out
    files = [path for path in find(folder, "**/*") if is_file(path)]
    for path in files:
        _forget_machine(path, secret)
    sizes = {path: path.stat().st_size for path in files}
    largest, every = max(sizes, key=lambda path: sizes[path]), sum(sizes.values())
    size = f"{len(files)} files, {in_bytes(every)}, the largest {in_bytes(sizes[largest])}."
    too_large = [(sizes[largest], *ALLOWED["file"], largest.relative_to(folder)), (every, *ALLOWED["site"], "the site")]
    return [size, *(f"{what} is larger: {limit}." for has, most, limit, what in too_large if has > most)]


def _copy(source: Path, target: Path) -> None:
    refuse_strange_entries(source)
    if exists(target):
        raise UserError(f"Two of the folders are called {target.name}. Publish one of them, or rename it.")
    shutil.copytree(source, target)


def _add_report(rows: Rows, folder: Path, report: Path, memories: Sequence[str]) -> set[Path]:
    """Adds a report, with pages of memories if its run is there. Returns folders of this machine that it may name."""
    if not exists(report / "index.html"):
        raise UserError(f"{report} is no report: it has no index.html. Name a folder such as reports/demo.")
    place = report.resolve()
    below, base = "reports", place.parent.parent
    if place.parent.name == "comparisons":
        below, base = "reports/comparisons", base.parent
    target, results, about, secret = folder / below / place.name, base / "results" / place.name, ["", ""], {base}
    _copy(report, target)
    link = LINK.format(f"{below}/{place.name}/index.html", place.name)
    if below != "reports":
        rows["Comparisons"].append([link])
        return secret
    if exists(results / "settings.json"):
        shelf = open_shelf([results])
        (held,) = shelf.runs.values()
        pages = export(shelf, held, memories, target / "memories", colours=False)[1:]
        rows["Memories"].extend(_described(held.run, page, folder) for page in pages)
        write_report(held.run, target / "index.html")
        about = [visible(model_name(held.run)), visible(corpus_name(held.run))]
        secret |= {Path(each) for each in re.findall(r'"(/[^"]+)/[^/"]+"', held.run.settings.model_dump_json())}
    holding = ""
    if exists(target / "verdicts.csv"):
        verdicts = pd.read_csv(target / "verdicts.csv")["verdict"]
        holding = f"{(verdicts == HOLDS).sum()} of {len(verdicts)}"
    rows["Reports"].append([link, *about, holding, number(len(find(target, "memories/L*.html")))])
    return secret


def _described(run: Run, page: Path, folder: Path) -> list[Cell]:
    memory = run.memory(page.stem)
    link = LINK.format(page.relative_to(folder).as_posix(), memory.name)
    promoted = Markup(" ").join(map(token, memory.promotes(5)["token"]))
    return [link, run.name, promoted, visible("; ".join(memory.patterns["label"].head(3)))]


def _forget_machine(path: Path, secret: Iterable[Path]) -> None:
    """Leaves only the last part of each path of this machine in a file; also in tables that a page holds."""
    roots = {str(each).encode() for each in secret} - {b"/"}
    pattern = re.compile(
        b"(?:" + b"|".join(re.escape(each) for each in sorted(roots, key=len, reverse=True)) + b")" + PATH_END
    )

    def last_part(found: re.Match[bytes]) -> bytes:
        return found[0].rpartition(b"/")[2] if found[1] else b"."

    def embedded(found: re.Match[bytes]) -> bytes:
        return found[1] + base64.b64encode(pattern.sub(last_part, base64.b64decode(found[2])))

    content = path.read_bytes()
    if path.suffix not in TEXTS:
        if pattern.search(content):
            raise UserError(
                f"{path.name} names a folder of this machine, and is no text that ffkv could change. Leave its export out."
            )
        return
    cleaned = pattern.sub(last_part, EMBEDDED_FILE.sub(embedded, content))
    if cleaned != content:
        path.write_bytes(cleaned)
