"""What `ffkv.behaviour` found: its tables, a figure, and the page that the report has as its section of behaviours."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from ffkv.base.files import tables
from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import as_path
from ffkv.base.version import version
from ffkv.branches.behaviours import told
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import NONE, Behaviour
from ffkv.run.report import section, step
from ffkv.run.report.cards import Leads
from ffkv.run.report.overview import model_name, read_line
from ffkv.run.report.wording import make_environment
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run

BRANCH = "behaviours"


class _Asked(Run):
    """A run as if its settings named one behaviour alone, whose tables are in memory. Figures and words of the report read it."""

    def __init__(self, run: Run, name: str, its: Behaviour, found: Mapping[str, pd.DataFrame]):
        vars(self).update(vars(run))
        report = run.settings.report.model_copy(update={"control": NONE})
        self.settings = run.settings.model_copy(update={BRANCH: {name: its}, "report": report})
        self.files, self._found = copy.copy(run.files), found

    @property
    def tables(self) -> list[str]:
        """See `Run.tables`."""
        return sorted({*super().tables, *self._found})

    def table(self, name: str) -> pd.DataFrame:
        """See `Run.table`."""
        return self._found[name].copy() if name in self._found else super().table(name)


class AskedBehaviour(dict[str, pd.DataFrame]):
    """What `ffkv.behaviour` found. It is also a dictionary of `tables`, and a copy by pickle is that dictionary alone.

    Attributes:
        name: name of the behaviour: that of the file of prompts.
        run: name of the run.
        settings: what was asked.
        tables: those of the report's section of behaviours by their names (docs/formats.md), and `memories`: contrast and screen of
            every memory of the model.
        memories: the candidates with their total effects, the largest size first; where no effect was measured, the largest
            contrast. Columns: name ("L3.17", as `off` of `ffkv.trace` and `ffkv.generate` takes it), and those of
            `behaviour_memories.csv`.
        sets: what is lost when sets of memories are patched, and what is left when all others are: `behaviour_sets.csv`.
        told: what was found, in the sentences of the report.
    Examples:
        >>> import json
        >>> run = ffkv.open("results/tiny")
        >>> names = ("prompt", "answer", "wrong")
        >>> rows = [dict(zip(names, (f"This {word}", " is", " are"))) for word in ("list", "file", "name", "line")]
        >>> _ = open("is.jsonl", "w").write("\\n".join(map(json.dumps, rows)))
        >>> found = ffkv.behaviour(run, "is.jsonl", minimum_accuracy=0, flips=100, candidates=1, controls=19)
        >>> trace = ffkv.trace(run, "This list", off=found.memories["name"])
        >>> found.plot().savefig("is.png")
        >>> found.save("is")[-1].name
        'index.html'
    """

    def __init__(self, run: Run, name: str, its: Behaviour, found: Mapping[str, pd.DataFrame]):
        """Use `ffkv.behaviour`."""
        super().__init__(found)
        self.name, self.run, self.settings, self.tables = name, run.name, its, dict(found)
        self._run, self._view = run, _Asked(run, name, its, self.tables)
        self.told = " ".join([*told.tell(self._view), told.caption_layers(self._view).shows])
        rows, strength, _ = told.candidates(self._view, name)
        rows = rows.sort_values(strength, key=abs, ascending=False, kind="stable").reset_index(drop=True)
        rows.insert(0, "name", [memory_name(row.layer, row.memory) for row in rows.itertuples()])
        self.memories, self.sets = rows, self._view.table(told.SETS)

    def __reduce__(self) -> tuple[type[dict], tuple[dict[str, pd.DataFrame]]]:
        return dict, (self.tables,)

    def __repr__(self) -> str:
        return f"<Behaviour {self.name} in {self.run}: {told.tell_candidates(self._view, self.name)}>"

    def plot(self, name: str = "behaviour_layers") -> Figure:
        """Draws a figure of the report: each candidate at its layer and effect; or "behaviour_sets", or another one of the run.

        Raises:
            UserError: there is no such figure; lists those that there are.
        """
        return step.figure(self._view, name)

    def save(self, folder: Path | str) -> list[Path]:
        """Writes the tables as CSV files, and the report's section on the behaviour as `index.html`. Returns their paths."""
        page, paths = as_path(folder) / "index.html", {name: as_path(folder) / f"{name}.csv" for name in self.tables}
        for name, path in paths.items():
            tables.write(self.tables[name], path)
        write_text(page, self._page(paths))
        return [*paths.values(), page]

    def _page(self, paths: dict[str, Path]) -> str:
        """Returns the page. It offers the tables that lie at `paths`."""
        view, environment = copy.copy(self._view), make_environment(("ffkv.run.report", "."))
        view.files = copy.copy(view.files)
        view.files.table_files = paths
        exhibits = {name: replace(each, file="") for name, each in section.draw_exhibits(view, only=BRANCH).items()}
        environment.filters["linked"] = leads = Leads(self._run)
        return environment.get_template("behaviour.html").render(
            behaviour=self,
            model=model_name(view),
            read=read_line(self._run),
            summary=told.tell(view),
            section=section.arrange(view, BRANCHES[BRANCH], exhibits),
            settings=self.settings.model_dump_json(indent=2).splitlines(),
            leads=leads,
            version=version(),
        )

    def _repr_html_(self) -> Markup:
        return step.FRAME.format(self._page({}))
