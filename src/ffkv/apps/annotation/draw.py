"""Which keys and changes a sheet has, which controls are among them, and who judges what."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ffkv.apps.annotation.records import identity_of
from ffkv.apps.annotation.settings import Sheets
from ffkv.apps.annotation.sheets import Item, Origin, SecretKey, Sheet
from ffkv.base.errors import UserError
from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.run.results.memory_columns import stored_examples
from ffkv.run.results.run import Run

# No digits: a spreadsheet would take 0857 or 1e25 for a number. No vowels: no words.
ID_LETTERS, ID_LENGTH = "bcdfghjkmnpqrstvwxz", 8


def draw_keys(run: Run, name: str, design: Sheets) -> tuple[Sheet, SecretKey]:
    """Makes a sheet of keys. They are drawn from the keys that the tests analysed, with the same prefixes.

    Each control has random prefixes, as many and as long as those of one of the keys. Raises UserError if no analysed
    key has enough prefixes for a pattern.
    """
    generator, minimum = random_stream(design.seed, Purpose.SHEETS, 0), run.settings.keys.minimum_prefixes
    keys = choose_keys(run.files.details("keys/by_prefix"), minimum, design.per_layer, generator)
    if not keys:
        raise UserError(
            f"No analysed key of {run.name} has the {minimum} prefixes that a pattern needs. Take a larger corpus, or"
            " another run."
        )
    corpus, triggers = run.corpus("train"), run.settings.triggers
    competing = CompetingPrefixes(corpus, triggers.shared_prefixes_compete == "once", triggers.include_empty_prefix)
    real = [_origin_of(run, *key) for key in keys]
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
    chosen = generator.permutation(rows)[: _at_least(design.controls, len(real))].tolist()
    others = [(row, _other_change(table, row, generator)) for row in chosen]
    controls = [Origin(sample="random", layer=last, row=row, other=other) for row, other in others if other >= 0]

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
        keys = [(int(memory), ranks.tolist()) for memory, ranks in of_layer.groupby("memory")["rank"]]
        keys = [key for key in keys if len(key[1]) >= minimum]
        for number in np.sort(generator.permutation(len(keys))[:per_layer]).tolist():
            chosen.append((int(layer), *keys[number]))
    return chosen


def _origin_of(run: Run, layer: int, memory: int, ranks: list[int]) -> Origin:
    """Returns a key with the places of its prefixes."""
    row = run.anatomy.layer_offset[layer] + memory
    places = stored_examples(run.files, row, "positive", ["sentence", "position"])
    sentence, position = (np.asarray(places[each])[ranks].tolist() for each in ("sentence", "position"))
    return Origin(sample="trigger", layer=layer, memory=memory, ranks=ranks, sentence=sentence, position=position)


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


def _other_change(table: pd.DataFrame, row: int, generator: np.random.Generator) -> int:
    """Returns a random row whose second token is neither of the tokens of this row; -1 if there is none."""
    own = table.iloc[row][["residual_token", "output_token"]].tolist()
    others = np.flatnonzero(~table["output_token"].isin(own).to_numpy())
    return int(generator.choice(others)) if len(others) else -1


def deal(
    samples: Sequence[int], annotators: Sequence[str], shared: float, generator: np.random.Generator
) -> dict[str, list[int]]:
    """Says which items each person judges. All items are numbered through, from 0.

    `samples`: number of items of each kind: keys, controls; `shared`: share of the items that all people judge. The
    others are dealt out in turn.
    """
    hands: dict[str, list[int]] = {annotator: [] for annotator in annotators}
    first = turn = 0
    for count in samples:
        numbers = (first + generator.permutation(count)).tolist()
        for_all = _at_least(shared, count)
        for number in sorted(numbers[for_all:]):  # in the order of the layers, so that everybody gets all layers
            hands[annotators[turn % len(annotators)]].append(number)
            turn += 1
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
    identity = identity_of(run.files.identity("train"))
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
