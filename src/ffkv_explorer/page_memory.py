"""Pages of memories: of one, with its parts that take longer, coloured tokens and similar memories; of two; of an expert; and as files.

Files are for a paper's supplement. They open from disk, without network and without scripts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from starlette.responses import JSONResponse, Response

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.report.cards import Card, choose
from ffkv.run.results import indexes
from ffkv.run.results.collections import expand, person
from ffkv.run.results.depth import pair_layers
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_columns import Columns, rows_of
from ffkv.run.results.memory_name import expert_name, memory_name
from ffkv.run.results.text import decimals, signed, visible
from ffkv_explorer import page_run, page_search
from ffkv_explorer.pages import LIVE, Exported, Live, render, step, write
from ffkv_explorer.shelf import Held, NoSuch, Shelf, import_model_code, import_page_code

EXAMPLES = 10  # trigger examples per sign that the page shows at first
PREDICTIONS = 20
EXPORTED = 24  # memories whose pages are written if none is named, as many as a report has cards
SIMILAR = 10
MEMORIES, PATTERNS = 20, 10  # of an expert
QUANTILES, RANDOM = (1.0, 0.95, 0.9, 0.75, 0.5, 0.25, 0.0), 5  # texts of all strengths, and random ones
SCORES = {"detection": "detection", "same_word": "detection of the same word"}  # of explanations, in words
SCORES |= {name: name for name in ("fuzzing", "simulation", "intruder")}
FACTS = {  # of the memory: how each is written
    "firing_rate": "percent", "mean_coefficient": "signed", "maximum_coefficient": "number",
    "negative_rate": "percent", "minimum_coefficient": "signed", "norm": "number", "contribution": "number",
    "top_probability": "percent", "rank": "number", "trigger_examples": "number", "matching": "number",
    "role": "words", "output_role": "words", "key_value_cosine": "signed", "gate_value_cosine": "signed",
    "ignored_share": "percent", "unigram_correlation": "signed", "last_in_top": "percent", "last_in_bottom": "percent",
}  # fmt: skip
NO_RANK = -1  # of a key without trigger examples
BEFORE, AFTER = 60, 15  # tokens of a coloured sentence that are shown before and after the end of the trigger example
TOKEN = Markup('<span class="t {}{}" tabindex="{}" title="{}">{}</span>')  # of a coloured sentence
TOTAL = {"positive": "trigger_examples", "negative": "negative_trigger_examples"}


def strengths(held: Held, memory: Memory) -> dict[str, Any]:
    """Texts of all strengths, by the memory's coefficients on the prefixes of `Held.sample`. They need no model.

    Returns `quantiles`, a row per quantile of the coefficients that are not 0, the highest first: quantile, coefficient, text,
    last_token, next_token; `random`, some prefixes: rows of the same without `quantile`; the numbers of `prefixes` in the
    sample, and of those that are `nonzero`.
    """
    sample = held.sample(memory.layer)
    m = sample.m[:, memory.memory]
    order = np.argsort(m, kind="stable")
    order = order[m[order] != 0]
    shown: dict[tuple[int, int], tuple[float, int]] = {}  # of a small sample several quantiles are one prefix
    for quantile in QUANTILES if len(order) else ():
        row = int(order[round(quantile * (len(order) - 1))])
        shown.setdefault((sample.sentence[row], sample.position[row]), (quantile, row))
    generator = random_stream(held.run.settings.seed, Purpose.SHOWN_PREFIXES, memory.layer, memory.memory)
    drawn = generator.choice(len(m), min(RANDOM, len(m)), replace=False)

    def texts(rows: np.ndarray) -> Columns:
        places = sample.sentence[rows].astype(int), sample.position[rows].astype(int)
        found = dict(zip(("text", "last_token"), held.run.corpus("validation").prefix_texts(*places)))
        found["next_token"] = indexes.token_texts(sample.next_token[rows], held.run.vocabulary)
        return {"coefficient": m[rows], **found}

    quantiles: Columns = {"quantile": [quantile for quantile, _ in shown.values()]}
    at_quantiles = rows_of(quantiles | texts(np.array([row for _, row in shown.values()], int)))
    return {"quantiles": at_quantiles, "random": rows_of(texts(drawn)), "prefixes": len(m), "nonzero": len(order)}


def side_of(held: Held, card: Card, name: str, coloured_by: Shelf | None) -> dict[str, Any]:
    """Returns the trigger examples of one sign, as the page shows them: name, rows (of the card), total (how many there are).

    `source`: how the names of all their documents without a title begin. `coloured`: of each row the sentence with a colour per
    token, or None. `coloured_by`: the open runs, if each token is coloured.
    """
    rows, memory = card.triggers if name == "positive" else card.negative, card.memory
    coloured: list[Markup | None] = [None] * len(rows)
    if coloured_by:
        m = colours_of(held, coloured_by, memory, name, [row.sentence for row in rows])
        largest = max((float(np.abs(each).max(initial=0)) for each in m), default=0.0)
        coloured = [colour_sentence(held, row.sentence, row.position, each, largest) for row, each in zip(rows, m)]
    sources = {row.document.rpartition(":")[0] for row in rows if not row.title}  # "file:line"
    found = {"name": name, "rows": rows, "coloured": coloured, "total": int(memory.statistics[TOTAL[name]])}
    return found | {"source": f"{next(iter(sources))}:" if len(sources) == 1 and sources != {""} else ""}


def colours_of(held: Held, shelf: Shelf, memory: Memory, name: str, sentences: list[int]) -> list[np.ndarray]:
    """Coefficients of all tokens of the sentences of the first trigger examples. The first call loads the model.

    Raises UserError if the checkpoint is gone, or its weights have changed.
    """

    def compute() -> list[np.ndarray]:
        import_model_code()
        from ffkv.run.trace.coefficients import coefficients  # torch

        with shelf.model:
            found = coefficients(held.run, sentences, memory.name)[memory.name]
        return [m.to_numpy() for _, m in found.groupby(level="text")]

    return held.colours.get((memory.name, name, len(sentences)), compute) if sentences else []


def colour_sentence(held: Held, sentence: int, position: int, m: np.ndarray, largest: float) -> Markup:
    """Colours the tokens of a sentence by the memory's coefficient, m [token]. The value is told on focus and hover.

    The last token of the trigger example has a border, and what follows is smaller. `largest`: the coefficient, without
    sign, at the end of the scale.
    """
    texts, first = held.run.corpus("train").token_texts(sentence), max(0, position - BEFORE)
    until = min(len(m), position + AFTER)
    focus = min(position, len(m)) - 1  # Tab leads to the last token of the trigger example, arrows to the others
    pieces = ["…"] if first else []
    for place in range(first, until):
        after = " after" if place >= position else " last" if place == position - 1 else ""
        look, told = step(m[place], largest), f"coefficient {signed(float(m[place]))}"
        tab = 0 if place == focus else -1
        pieces.append(TOKEN.format(look, after, tab, told, visible(texts[place])))
    return Markup("").join([*pieces, "…"] if until < len(m) else pieces)


def memory(shelf: Shelf, held: Held, layer: int, index: int, query: Mapping[str, str]) -> Response:
    """Returns the page of a memory, or its JSON. An address asks for `colours` of each token, for `all` examples, and
    for `patterns` of a memory whose key the run did not sample; these are kept."""
    if query.get("format") == "json":
        return as_json(held, layer, index)
    coloured_by = shelf if "colours" in query else None
    sought = None
    if "patterns" in query:
        import_page_code()
        sought = held.run.memory(layer, index).seek_patterns()
    shown = values(held, layer, index, LIVE, coloured_by, "all" in query, sought)
    if shown["card"].sought is None and not shown["memory"].sampled:
        held.prepare_to_seek()
    kept: dict[str, Any] = {"kept": page_search.read_lists(held), "person": person()}  # whose notes can be changed
    return render("memory.html", held=held, sends=True, runs=[*shelf.runs], **kept, **shown)


def values(
    held: Held,
    layer: int,
    index: int,
    links: Live = LIVE,
    coloured_by: Shelf | None = None,
    every: bool = False,
    sought: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Returns what the template of a memory shows. `sought`: patterns just sought; else those that are kept are shown.
    `every`: whether all examples are shown, or the first ones; `coloured_by`: see `side_of`."""
    memory = held.run.memory(layer, index)
    if sought is None and memory.patterns.empty and not memory.sampled:
        sought = memory.sought
    shown_examples = held.run.settings.triggers.per_key if every else EXAMPLES
    card = Card(held.run, memory, sought, shown_examples, PREDICTIONS)
    rows = {name: _rows(memory, name) for name in ("labels", "explanations", "effects", "behaviours", "concepts")}
    reading = f".read_as({held.run.files.reading!r})" if held.asks else ""
    opened = f"ffkv.open({str(held.run.folder)!r}){reading}"
    shown = {"memory": memory, "card": card, "numbers": facts(card), "strengths": strengths(held, memory)}
    shown |= {"coloured": coloured_by is not None, "every": every, **rows}
    shown["reads"] = memory.reads.to_dict("records")
    shown["sides"] = [side_of(held, card, name, coloured_by) for name in list(TOTAL)[: 1 + card.signed]]
    shown["neighbours"] = neighbours(held, layer, index, links)
    shown["explanations"] = [(row["annotator"], row["label"], scores_of(row)) for row in rows["explanations"]]
    return shown | {"python": f"import ffkv\n\nmemory = {opened}.memory({memory.name!r})"}


def _rows(memory: Memory, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a table of a memory. Most memories have none, and an empty table of many columns takes its time."""
    files = memory.run.files
    table = indexes.effects_by_memory(files) if name == "effects" else getattr(indexes, name)(files)
    return getattr(memory, name).to_dict("records") if (table["row"].to_numpy() == memory.row).any() else []


def facts(card: Card) -> list[tuple[str, Any, str]]:
    """Returns the memory's numbers: name, value and form ("percent", "number", "signed" or "words")."""
    numbers = dict(card.memory.statistics)
    found = [
        (name.replace("_", " "), numbers[name], form)
        for name, form in FACTS.items()
        if name in numbers
        and numbers[name] != ""
        and not pd.isna(numbers[name])
        and not (name == "rank" and numbers[name] == NO_RANK)
    ]
    if numbers["trigger_examples"]:
        found.append(("precision", numbers["matching"] / numbers["trigger_examples"], "percent"))
    return found


def scores_of(row: Mapping[str, Any]) -> str:
    """Returns the scores of an explanation that are known, in words; those of another memory's label in brackets."""
    told = []
    for name, words in SCORES.items():
        value, other = (float(row.get(each, math.nan)) for each in (name, f"{name}_of_other"))
        if not math.isnan(value):
            told.append(f"{words} {decimals(value)}" + ("" if math.isnan(other) else f" ({decimals(other)})"))
    return ", ".join(told) or "no scores"


def neighbours(held: Held, layer: int, index: int, links: Live) -> dict[str, tuple[str, str]]:
    """Returns name and address of the memories before and after, and of the same number in the layers around."""
    sizes = held.sizes
    places = {"previous": (layer, index - 1), "next": (layer, index + 1)}
    places |= {"layer_before": (layer - 1, index), "layer_after": (layer + 1, index)}
    return {
        name: (memory_name(at, number), address)
        for name, (at, number) in places.items()
        if 0 <= at < len(sizes) and 0 <= number < sizes[at] and (address := links.memory(held, at, number))
    }


def similar_to(held: Held, layer: int, index: int) -> dict[str, pd.DataFrame]:
    """Returns the most similar memories, in each way. All values and coefficients are read, so the answers are kept.

    Columns: those of `Memory.similar`; top_token (of the value), detects (the pattern in the most trigger examples; "" if
    there is none), example (text of the strongest trigger example; "" if there is none) and its last_token.
    """
    memory = held.run.memory(layer, index)

    def compare() -> dict[str, pd.DataFrame]:
        return {by: _described(held, memory.similar(by, SIMILAR)) for by in ("coefficients", "value", "triggers")}

    return held.similar.get(memory.name, compare)


def _described(held: Held, found: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for place in found[["layer", "memory"]].itertuples(index=False):
        other = held.run.memory(*map(int, place))
        example = other.triggers[["text", "last_token"]].head(1).to_numpy(str)
        text, last = example[0] if len(example) else ("", "")
        rows.append((other.promotes(1)["token"][0], next(iter(other.patterns["label"]), ""), text, last))
    return found.assign(**dict(zip(("top_token", "detects", "example", "last_token"), zip(*rows)))) if rows else found


def similar(held: Held, layer: int, index: int) -> Response:
    """Returns the page of a memory's similar ones; the script puts its main part into the memory's page."""
    memory = held.run.memory(layer, index)
    return render("similar.html", held=held, memory=memory, near=similar_to(held, layer, index))


def as_json(held: Held, layer: int, index: int) -> JSONResponse:
    """Returns a memory with everything that its page shows, but for texts of all strengths and similar memories."""
    memory = held.run.memory(layer, index)
    names = ("triggers", "negative_triggers", "promotes", "demotes", "patterns", "labels", "explanations")
    asked = {name: getattr(memory, name) for name in names}
    shown = min(PREDICTIONS, held.run.settings.values.top_tokens, held.run.anatomy.vocabulary)
    tables = {name: table(shown) if callable(table) else table for name, table in asked.items()}
    tables["histogram"] = memory.histogram.replace([np.inf, -np.inf], np.nan)
    found: dict[str, Any] = {"run": held.name, **held.asks, "data": held.data, "name": memory.name}
    found |= {"layer": layer, "memory": index, "unit": memory.unit}
    # pandas cannot write a NaN of 32 bits among words.
    numbers = memory.statistics.map(lambda value: float(value) if isinstance(value, np.floating) else value)
    statistics = json.loads(numbers.to_json(double_precision=10))
    rows = {name: json.loads(table.to_json(orient="records", double_precision=10)) for name, table in tables.items()}
    return JSONResponse(found | {"statistics": statistics} | rows)


def expert(held: Held, name: str) -> Response:
    """Returns the page of an expert: its memories, the tokens that are sent to it, and what it does on behaviours. Raises NoSuch if the
    run has no such expert."""
    try:
        its = held.run.expert(name)
    except UserError as error:
        raise NoSuch(str(error)) from error
    steps = {"←": its.expert - 1, "→": its.expert + 1}
    beside = {word: expert_name(its.layer, at) for word, at in steps.items() if 0 <= at < its.of}
    memories, patterns = its.memories, its.patterns.head(PATTERNS)
    shown = {"load": its.load, "patterns": patterns, "effects": its.effects, "memories": memories.head(MEMORIES)}
    rows = {part: table.to_dict("records") for part, table in shown.items()}
    return render("expert.html", held=held, expert=its, beside=beside, count=len(memories), **rows)


def compare(shelf: Shelf, query: Mapping[str, str]) -> Response:
    """Returns the page of two runs side by side, by relative depth, and of a memory of each.

    Memory L3.17 is the same unit in two runs of one model: at another training step or on another corpus. In models of
    another size or seed it is not.

    An address names the runs `a` and `b`; without them they are the first and the last one. It names the memory of each:
    `memory`, without it L0.0, and `memory_b`, without it the same.
    """
    names = list(shelf.runs)
    runs = [shelf.run(query.get("a") or names[0]), shelf.run(query.get("b") or names[-1])]
    first = query.get("memory") or "L0.0"
    asked = [first, query.get("memory_b") or first]
    columns, problems = [], []
    for held, name in zip(runs, asked):
        try:
            place = held.place(name)
        except NoSuch as error:
            problems.append(f"Run {held.name}: {error}")
        else:
            columns.append({"held": held} | values(held, *place))
    if len(columns) == 2:
        for one, other in (columns, columns[::-1]):
            one["also"] = {row.token for row in other["card"].top} | {row.label for row in other["card"].patterns}
    tables = [page_run.layers(held).set_index("layer", drop=False).to_dict("index") for held in runs]
    pairs = pair_layers(*(len(held.sizes) for held in runs))  # at the same relative depth
    depths: list[dict[str, Any]] = [
        {"depth": depth, "layers": [table[at] for table, at in zip(tables, pair)]} for depth, *pair in pairs
    ]
    shown: dict[str, Any] = {"names": names, "runs": runs, "asked": asked, "problems": problems, "depths": depths}
    shown["columns"] = [] if problems else columns
    shapes = [(held.run.anatomy.architecture, held.sizes) for held in runs]
    shown["alike"] = shapes[0] == shapes[1]
    shown["statistics"] = [each for each in page_run.COLUMNS if any(each.name in row for row in depths[0]["layers"])]
    return render("compare.html", status=400 if problems else 200, **shown)


def export(shelf: Shelf, held: Held, names: Sequence[str], folder: Path, colours: bool) -> list[Path]:
    """Writes the page of a run and those of some memories into a folder. Returns the files, the run's first.

    Without names of memories, they are those that a report of 24 cards shows. Coloured tokens need the model. Raises
    UserError if there is no such memory, or the model cannot be loaded.
    """
    run = held.run
    memories = [run.memory(name) for name in expand(run.files, names)]
    places = list(dict.fromkeys((memory.layer, memory.memory) for memory in memories))
    if not places:
        places = choose(indexes.trigger_patterns(run.files), run.memories(), EXPORTED)
    links, coloured_by = Exported(places), shelf if colours else None
    pages = {"index.html": write("run.html", held=held, links=links, **page_run.values(held))}
    for place in places:
        try:
            shown = values(held, *place, links, coloured_by)
        except UserError as error:
            if not colours:
                raise
            raise UserError(f"{error} Or write the pages without colours: --no-colours.") from error
        near = similar_to(held, *place)
        pages[links.memory(held, *place)] = write("memory.html", held=held, links=links, near=near, **shown)
    for name, page in pages.items():
        write_text(folder / name, page)
    return [folder / name for name in pages]
