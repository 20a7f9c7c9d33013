"""Asks a machine about a run: to judge sheets as people do, or to explain memories."""

import json
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from ffkv.apps.annotation.ratings import FOLDER, SETTINGS
from ffkv.apps.annotation.sheets import Sheet, read_sheet
from ffkv.apps.annotation.step import append_new
from ffkv.apps.machine.asking import Asker, Cost
from ffkv.apps.machine.endpoint import Endpoint, read_key
from ffkv.apps.machine.explain import PER_SET, SHOWN, estimate, explain
from ffkv.apps.machine.ledger import Ledger
from ffkv.apps.machine.questions import ask_items
from ffkv.apps.machine.settings import Machine, Task
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.journal import name_in_files
from ffkv.base.terminal import say
from ffkv.run.annotation_tables import MACHINE_FILES
from ffkv.run.results.run import Run


def machine_folder(folder: Path | str, model: str) -> Path:
    """Returns the folder of a model, `annotations/<run>/machine/<model>`."""
    return Path(folder) / FOLDER / name_in_files(model, r"[^A-Za-z0-9.-]+")


def ask_machine(
    run: Run, annotations: Path, machine: Machine, task: Task, *, dry_run: bool = False, replay: bool = False
) -> None:
    """Asks a machine about a run, keeps each answer in its `machine_folder`, and says what came of it.

    A dry run says what would be asked and how many tokens it takes: nothing is asked or written. A replay uses kept
    answers only. Raises UserError if no endpoint is named; see `Asker.ask` and `explain`.
    """
    silent = dry_run or replay
    if not (machine.endpoint or silent):
        raise UserError("Name the --endpoint, or ask nothing with --replay or --dry-run.")
    ledger = Ledger(machine_folder(annotations, machine.model) / "answers.jsonl")
    if ledger.torn:
        say(f"{ledger.path}: {ledger.torn} lines are not whole, because a process was killed. They are left out.")
    sheets = [read_sheet(annotations, name, run.files.identity("train")) for name in task.sheets]
    minimum = run.settings.keys.minimum_prefixes
    key = None if silent else read_key(machine.key_variable)
    with nullcontext() if silent else closing(Endpoint(str(machine.endpoint), key, machine.timeout)) as endpoint:
        asker = Asker(ledger, endpoint, machine)
        if dry_run:
            of_sheets = {sheet.name: asker.cost(ask_items(sheet, minimum)) for sheet in sheets}
            _say_costs(of_sheets or estimate(run, asker, task), ledger.spent)
            return
        for sheet in sheets:
            answered, new = judge(sheet, annotations, asker, minimum)
            say(f"{sheet.name}: {answered} of {len(sheet.items)} items judged, {new} new records.")
        if not sheets:
            _explain(run, asker, task)
    say(f"{asker.asked:,} requests were sent now. All kept answers took {ledger.spent:,} tokens: {ledger.path}")


def judge(sheet: Sheet, folder: Path, asker: Asker, minimum: int) -> tuple[int, int]:
    """Lets a machine judge every item of a sheet, and appends its records beside those of people.

    Returns the number of items that were judged (a refused one has no record), and of records that say something new.
    Raises UserError: see `Asker.ask` and `append_record`. `minimum`: fewest prefixes of a pattern.
    """
    annotator, field = f"machine:{asker.machine.model}", "related" if sheet.kind == "change" else "patterns"
    answers = zip(sorted(sheet.items), asker.ask(ask_items(sheet, minimum), sheet.name), strict=True)
    said = [
        sheet.record(annotator, item, **{field: answered.value}) for item, answered in answers if not answered.refusal
    ]
    return len(said), append_new(folder, sheet, annotator, said)


def _explain(run: Run, asker: Asker, task: Task) -> None:
    """Explains memories, and writes tables beside the answers. `settings.json` says what the numbers depend on."""
    annotation, folder, machine = explain(run, asker, task), asker.ledger.path.parent, asker.machine
    for name, table in zip(MACHINE_FILES, annotation, strict=True):
        tables.write(table, folder / name)
    about: dict[str, Any] = {"run": run.name, **run.files.identity("train"), "shown": SHOWN, "per_set": PER_SET}
    about |= task.model_dump(include={"seed", "pairs", "per_question", "baseline"}) | {"measured": task.pairs}
    about |= {"model": machine.model, "parameters": machine.sent, "forms": machine.forms}
    with atomic(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    of_all = annotation.by_layer.query("layer == -1").drop(columns="layer")
    say(of_all.to_string(index=False, float_format="%.2f"))
    refused = int((annotation.labels["refusal"] != "").sum())
    say(f"{len(annotation.labels)} memories, {refused} labels refused: {folder}")


def _say_costs(costs: Mapping[str, Cost], spent: int) -> None:
    for kind, cost in costs.items():
        say(f"{kind}: {cost.questions:,} questions, {cost.kept:,} of them with a kept answer")
    questions, kept, about, most = map(sum, zip(*costs.values()))
    say(
        f"{questions - kept:,} questions would be asked. That takes about {about:,} tokens, and {most:,} at most if"
        f" each is answered in the right form at once. {spent:,} tokens are spent."
    )
