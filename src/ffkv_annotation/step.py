"""Chooses which keys and changes a sheet has, which controls are among them, and who judges what; takes what people wrote, and compares them."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.stored import HASHES
from ffkv.base.lookup import exists
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.keys.key_sample import first_of_each
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.run.results.collections import choose_memories
from ffkv.run.results.memory_columns import stored_examples
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv_annotation import sheets, summaries
from ffkv_annotation.records import Record, append_record, read_records
from ffkv_annotation.settings import Sheets
from ffkv_annotation.sheets import Item, Origin, SecretKey, Sheet

# No digits: a spreadsheet would take 0857 or 1e25 for a number. No vowels: no words.
ID_LETTERS, ID_LENGTH = "bcdfghjkmnpqrstvwxz", 8


def draw_keys(run: Run, name: str, design: Sheets) -> tuple[Sheet, SecretKey]:
    """Makes a sheet of keys: those of `design.memories`, or else keys drawn from those that the tests analysed, with the same prefixes.

    Each control has random prefixes, as many and as long as those of one of the keys. Raises UserError if no analysed
    key, or one of the memories, has not enough prefixes for a pattern.
    """
    generator, minimum = random_stream(design.seed, Purpose.SHEETS, 0), run.settings.keys.minimum_prefixes
    if design.memories:
        keys = named_keys(run, design.memories, minimum)
    else:
        keys = choose_keys(run.files.details("keys/by_prefix"), minimum, design.per_layer, generator)
    if not keys:
        raise UserError(
            f"No analysed key of {run.name} has the {minimum} prefixes that a pattern needs. Take a larger corpus, or"
            " another run."
        )
    corpus, triggers = run.corpus("train"), run.settings.triggers
    competing = CompetingPrefixes(corpus, triggers.shared_prefixes_compete == "once", triggers.include_empty_prefix)
    real = []
    for layer, memory, ranks in keys:
        row = run.anatomy.layer_offset[layer] + memory
        found = stored_examples(run.files, row, "positive", ["sentence", "position"])
        places: dict[str, Any] = {name: np.asarray(found[name])[ranks].tolist() for name in found}
        real.append(Origin(sample="trigger", layer=layer, memory=memory, ranks=ranks, **places))
    controls = draw_controls(competing, real, _at_least(design.controls, len(real)), design.seed)

    def item(origin: Origin) -> Item:
        return Item(prefixes=tuple(corpus.prefix_texts(np.array(origin.sentence), np.array(origin.position))[0]))

    return assign_items(run, name, "key", (real, controls), item, design, generator)


def draw_changes(run: Run, name: str, design: Sheets) -> tuple[Sheet, SecretKey]:
    """Makes a sheet of changes of the last layer (paper section 5.2). A control has the second token of another change.

    Raises UserError if the last layer changes no sampled prediction.
    """
    table = run.table("prediction_changes")
    if not len(table):
        raise UserError(f"The last layer of {run.name} changes no sampled prediction, so there is nothing to judge.")
    generator = random_stream(design.seed, Purpose.SHEETS, 1)
    last, rows = len(run.anatomy.layers) - 1, np.sort(generator.permutation(len(table))[: design.changes]).tolist()
    real = [Origin(sample="trigger", layer=last, row=row) for row in rows]
    controls = []
    for row in generator.permutation(rows)[: _at_least(design.controls, len(real))].tolist():
        own = table.iloc[row][["residual_token", "output_token"]].tolist()
        # Rows whose second token is neither of the tokens of this row.
        others = np.flatnonzero(~table["output_token"].isin(own).to_numpy())
        if len(others):
            controls.append(Origin(sample="random", layer=last, row=row, other=int(generator.choice(others))))

    def item(origin: Origin) -> Item:
        first, second = table.iloc[origin.row], table.iloc[origin.row if origin.other < 0 else origin.other]
        return Item(text=first["text"], before=first["residual_token"], after=second["output_token"])

    return assign_items(run, name, "change", (real, controls), item, design, generator)


def _at_least(share: float, count: int) -> int:
    """Returns a share of a count, rounded up."""
    return math.ceil(round(share * count, 9))


def choose_keys(
    by_prefix: pd.DataFrame, minimum: int, per_layer: int, generator: np.random.Generator
) -> list[tuple[int, int, list[int]]]:
    """Chooses keys of each layer at random. Returns layer, memory and the ranks of the analysed prefixes of each.

    `by_prefix`: rows of `keys/by_prefix`; `minimum`: fewest prefixes of a key.
    """
    analysed = by_prefix[by_prefix["sample"] == "trigger"].sort_values(["layer", "memory", "rank"])
    chosen = []
    for layer, of_layer in analysed.groupby("layer"):
        of_keys = of_layer.groupby("memory")["rank"]
        keys = [(int(memory), ranks.tolist()) for memory, ranks in of_keys if len(ranks) >= minimum]
        chosen += [(int(layer), *keys[number]) for number in np.sort(generator.permutation(len(keys))[:per_layer])]
    return chosen


def named_keys(run: Run, names: Sequence[str], minimum: int) -> list[tuple[int, int, list[int]]]:
    """Returns the keys of memories that a person names, as `choose_keys`: with the prefixes that the tests would analyse.

    Raises UserError if there is no such memory, or one has fewer than `minimum` prefixes.
    """
    chosen = []
    for layer, memory in zip(*(each.tolist() for each in choose_memories(run.files, names)), strict=True):
        row = run.anatomy.layer_offset[layer] + memory
        stored = stored_examples(run.files, row, "positive", ["sentence"])["sentence"]
        ranks = first_of_each(np.asarray(stored))[: run.settings.keys.pattern_triggers].tolist()
        if len(ranks) < minimum:
            raise UserError(
                f"{memory_name(layer, memory)} has trigger examples of {len(ranks)} sentences, and a pattern needs {minimum}. Leave it out."
            )
        chosen.append((layer, memory, ranks))
    return chosen


def draw_controls(competing: CompetingPrefixes, keys: Sequence[Origin], count: int, seed: int) -> list[Origin]:
    """Draws random prefixes, from different sentences as far as there are enough, each as long as a prefix of a key.

    Each of the `count` controls has the lengths of a random one of the keys. `competing`: the prefixes that trigger
    examples were chosen from.
    """
    generator = random_stream(seed, Purpose.SHEET_CONTROLS)
    models = [keys[number] for number in generator.integers(0, len(keys), count).tolist()]
    numbers: dict[int, int] = {}  # of the controls of each layer
    controls = []
    for model in sorted(models, key=lambda each: each.layer):
        sentences: list[int] = []
        for position in model.position:
            fitting = np.flatnonzero((competing.first <= position) & (competing.corpus.lengths > position))
            unused = np.setdiff1d(fitting, sentences)
            sentences.append(int(generator.choice(unused if len(unused) else fitting)))
        memory = numbers[model.layer] = numbers.get(model.layer, -1) + 1
        places = {"ranks": range(len(sentences)), "sentence": sentences, "position": model.position}
        controls.append(Origin(sample="random", layer=model.layer, memory=memory, **places))
    return controls


def deal(
    samples: Sequence[int], annotators: Sequence[str], shared: float, generator: np.random.Generator
) -> dict[str, list[int]]:
    """Says which items each person judges. All items are numbered through, from 0.

    `samples`: number of items of each kind: keys, controls; `shared`: share of the items that all people judge. The
    others are dealt out in turn.
    """
    hands: dict[str, list[int]] = {annotator: [] for annotator in annotators}
    turns, first = itertools.cycle(hands.values()), 0
    for count in samples:
        numbers = (first + generator.permutation(count)).tolist()
        for_all = _at_least(shared, count)
        for number in sorted(numbers[for_all:]):  # in the order of the layers, so that everybody gets all layers
            next(turns).append(number)
        for hand in hands.values():
            hand += numbers[:for_all]
        first += count
    return hands


def assign_items(
    run: Run,
    name: str,
    kind: str,
    samples: tuple[list[Origin], list[Origin]],
    item: Callable[[Origin], Item],
    design: Sheets,
    generator: np.random.Generator,
) -> tuple[Sheet, SecretKey]:
    """Numbers the items, assigns them to people, and repeats some."""
    origins: dict[str, Origin] = {}
    ids = [_number(origins, origin, generator) for sample in samples for origin in sample]
    orders = {}
    hands = deal([len(sample) for sample in samples], design.annotators, design.shared, generator)
    for annotator, hand in hands.items():
        own = [ids[number] for number in hand]
        twice = generator.permutation(len(own))[: _at_least(design.repeated, len(own))].tolist()
        again = [origins[own[number]].model_copy(update={"repeats": own[number]}) for number in twice]
        own += [_number(origins, origin, generator) for origin in again]
        orders[annotator] = tuple(own[number] for number in generator.permutation(len(own)).tolist())
    identity = {name: each for name, each in run.files.identity("train").items() if name in HASHES}
    origins = dict(sorted(origins.items()))
    items = {number: item(origin) for number, origin in origins.items()}
    sheet = Sheet(name=name, kind=kind, identity=identity, items=items, orders=orders)
    return sheet, SecretKey(name=name, identity=identity, origins=origins)


def _number(origins: dict[str, Origin], origin: Origin, generator: np.random.Generator) -> str:
    """Gives an item a random id, and its prefixes a random order. Returns the id."""
    while (number := "".join(generator.choice([*ID_LETTERS], ID_LENGTH).tolist())) in origins:
        pass
    order = generator.permutation(len(origin.ranks)).tolist()
    lists = {name: tuple(getattr(origin, name)[place] for place in order) for name in ("ranks", "sentence", "position")}
    origins[number] = origin.model_copy(update=lists)
    return number


def make_sheets(run: Run, folder: Path | str, design: Sheets) -> list[Path]:
    """Makes a sheet of keys and one of changes of the last layer, and a CSV file of each for every person.

    The same call goes on after an interruption. It leaves the CSV files of its sheets as they are: a person may have begun.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
        design: how many keys, changes and controls, for whom.
    Returns:
        The files of the sheets, then the CSV files.
    Raises:
        UserError: another sheet has this name; no keys or changes are asked for; the run has none to judge; or no such memory.
    Examples:
        >>> design = ffkv_annotation.Sheets(annotators=["anna"], per_layer=1, changes=1)
        >>> paths = ffkv_annotation.make_sheets(ffkv.open("results/tiny"), "annotations/tiny", design)
        >>> [path.name for path in paths if path.suffix == ".csv"]
        ['keys.anna.csv', 'changes.anna.csv']
    """
    folder = Path(folder)
    prefix, drawn = f"{design.name}-" if design.name else "", []
    if design.memories or design.per_layer:
        drawn.append(draw_keys(run, f"{prefix}keys", design))
    if design.changes and not design.memories:
        drawn.append(draw_changes(run, f"{prefix}changes", design))
    if not drawn:
        raise UserError("There is nothing to judge: give --per-layer, --changes, or both.")
    begun = [sheets.is_begun(folder, sheet) for sheet, _ in drawn]
    paths = [sheets.write_sheet(folder, *both) for both in drawn]
    for (sheet, _), was_begun in zip(drawn, begun):
        for annotator in sheet.orders:
            path = folder / "csv" / f"{sheet.name}.{annotator}.csv"
            paths.append(path if was_begun and exists(path) else write_person(folder, sheet, annotator, path))
    return paths


def write_person(folder: Path, sheet: Sheet, annotator: str, path: Path) -> Path:
    """Writes a person's items as a CSV file, see `write_csv`, with what the person has said so far. Returns its path."""
    sheets.write_csv(path, sheet, annotator, latest_of(folder, sheet, f"person:{annotator}"))
    return path


def latest_of(folder: Path, sheet: Sheet, annotator: str) -> dict[str, Record]:
    """Returns the latest record of each item of a sheet that an annotator ("person:anna") said something about."""
    records = read_records(folder, sheet.identity, annotator).latest
    return {record.item: record for record in records if record.sheet == sheet.name}


def append_new(folder: Path, sheet: Sheet, annotator: str, said: Iterable[Record]) -> int:
    """Appends the records that say something else than the annotator's latest ones. Returns their number."""
    before = latest_of(folder, sheet, annotator)
    new = [record for record in said if not record.repeats(before.get(record.item))]
    for record in new:
        append_record(folder, record)
    return len(new)


def import_person(run: Run, folder: Path, name: str, annotator: str, path: Path) -> tuple[int, int, int]:
    """Takes over what a person wrote into a CSV file. What was said before with the same words is not said again.

    Returns the number of items with something new, of items that the person is done with, and of items of the sheet.
    Raises UserError: see `read_csv`; nothing is taken over then.
    """
    sheet = sheets.read_sheet(folder, name, run.files.identity("train"))
    new = append_new(folder, sheet, f"person:{annotator}", sheets.read_csv(path, sheet, annotator))
    done = sum(record.done for record in latest_of(folder, sheet, f"person:{annotator}").values())
    return new, done, len(sheet.orders[annotator])


def compare_annotators(run: Run, folder: Path | str) -> dict[str, pd.DataFrame]:
    """Turns what people and machines said into tables, and measures how far they and the tests agree.

    Items that an annotator is not done with are left out. A line of a file that is not whole is left out, and told.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
    Returns:
        The tables of `ffkv.run.annotation_tables` by their names. Those about single patterns, prefixes, labels and
        scores hold the identities of model, tokenizer and corpus in their `attrs`. The tests are among the annotators
        of `annotators`, `figure_2_by_annotator` and `agreement`.
    Raises:
        UserError: a record or a label belongs to another run, or the secret key of a sheet is missing.
    Examples:
        >>> tables = ffkv_annotation.compare_annotators(ffkv.open("results/tiny"), "annotations/tiny")
        >>> len(tables["agreement"])  # nobody has judged anything
        0
    """
    folder, identity = Path(folder), run.files.identity("train")
    records = read_records(folder, identity)
    for line in records.torn:
        say(line, error=True)
    machines = summaries.read_machines(folder, identity)
    if not any(record.done for record in records.latest):
        say(f"Nobody is done with an item of a sheet in {folder} yet. Figure 2 is about the tests alone.", error=True)
    judged = {record.sheet for record in records.latest if record.done}
    secrets = {name: sheets.read_secret(folder, name, identity) for name in judged}
    said = summaries.tabulate(records.latest, secrets, run.settings.keys.minimum_prefixes)
    of_all = summaries.with_tests(said, run.files.details("keys/patterns"), run.files.details("keys/by_prefix"))
    return {
        "patterns": tables.identify(said.patterns, identity),
        "by_prefix": tables.identify(said.by_prefix, identity),
        "annotators": summaries.describe_annotators(of_all),
        "figure_2_by_annotator": summaries.count_categories(of_all.by_prefix, len(run.anatomy.layers)),
        "agreement": summaries.measure_agreement(of_all),
        "related_changes": summaries.count_related(said.changes),
        **{name: tables.identify(table, identity) for name, table in machines.items()},
    }
