"""Behaviours as functions on files: prompts become states, candidates, effects and tables."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import read_triggers
from ffkv.base.files import datasets, hdf5, tables
from ffkv.base.files.columns import Table
from ffkv.base.settings import Behaviour
from ffkv.base.settings import Corpus as CorpusSettings
from ffkv.base.steps import Work
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.behaviours import summaries, words
from ffkv.branches.behaviours.choose import accuracy_of, join, measure_memories, measure_stability
from ffkv.branches.behaviours.encode import NO_TOKEN, Encoded, draw, encode_prompts, prompt_rows
from ffkv.branches.behaviours.graph_tables import ALL_GRAPHS, GRAPHS
from ffkv.branches.behaviours.prompt_file import LISTS, Said, read_prompts
from ffkv.branches.behaviours.states_file import BLOCK, PromptStates
from ffkv.branches.behaviours.tables import ANSWERS, EFFECTS, MEMORIES, SETS, SIDE_EFFECTS, STABILITY, SUMMARIES
from ffkv.branches.behaviours.tables import PROMPTS as PROMPTS_TABLE
from ffkv.branches.values.projections import read_projections
from ffkv.corpus.chat import chat_renderer
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.model.checkpoint.vocabulary import read_vocabulary

KIND = "behaviour states"


def encode_behaviour(
    model: Path | str, train: Path | str, settings: Behaviour, name: str, seed: int = 0
) -> pd.DataFrame:
    """Encodes the prompts of a behaviour, and draws those that are used (docs/behaviours.md).

    Args:
        model: folder of the model step.
        train: file `corpus/train.h5`, which says what precedes a text.
        settings: of the behaviour.
        name: of the behaviour.
        seed: the run's seed.
    Returns:
        The table `PROMPTS` of `ffkv.branches.behaviours.tables`.
    Raises:
        UserError: the file of prompts is missing or malformed; a chat has no template; two lists are to be patched at all positions;
            or fewer than two prompts can be used.
    """
    from ffkv.base.errors import UserError
    from ffkv.model.checkpoint.tokenizer import load_tokenizer

    anatomy = read_anatomy(model)
    corpus = read_corpus(Path(train), {"tokenizer_hash": anatomy.tokenizer_hash})
    tokenizer = load_tokenizer(Path(model), trust_remote_code=anatomy.trust_remote_code)
    kind, prompts = read_prompts(settings.prompts)
    everywhere = settings.positions == "all"
    if everywhere and kind == LISTS:
        raise UserError(
            f"{settings.prompts} has two lists. Their prompts have no positions in common, so they cannot be compared with `positions:"
            f" all`. Set `positions` of {name} to last, or write pairs."
        )
    has_chats = settings.chat_template or any(
        isinstance(said, list) for prompt in prompts for said in (prompt.clean, prompt.patch)
    )
    chat = chat_renderer(tokenizer, CorpusSettings(chat_template=has_chats), answer=True)

    def render(said: Said) -> str:
        if chat is None or (isinstance(said, str) and not settings.chat_template):
            return str(said)
        return chat([{"role": "user", "content": said}] if isinstance(said, str) else said)

    encoded = encode_prompts(prompts, tokenizer, corpus.bos, anatomy.vocabulary, anatomy.context, render, everywhere)
    positive = np.array([prompt.positive for prompt in prompts])
    labels = [prompt.label for prompt in prompts]
    part = draw([each.unused for each in encoded], positive, labels, settings.count, seed)
    rows = prompt_rows(prompts, encoded, part, render)
    frame = PROMPTS_TABLE.frame(pd.DataFrame(rows).assign(behaviour=name))
    counts = frame["unused"].value_counts().to_dict()
    used = counts.pop("", 0)
    if counts:
        say(f"{used} of {len(frame)} prompts are used" + "".join(f"; {n}: {why}" for why, n in counts.items()) + ".")
    for half in (words.CHOOSE, words.ESTIMATE):
        of_half = positive[part == half]
        if len({*of_half.tolist()}) < len({*positive.tolist()}):
            reasons = "".join(f" {n} because {why}." for why, n in counts.items())
            raise UserError(
                f"{settings.prompts} has too few prompts that can be used: each half needs one, of two lists one of each."
                f" {len(frame)} are there.{reasons}"
            )
    return tables.identify(frame, corpus.attributes)


def read_behaviour(
    model: Path | str, encode: Path | str, triggers: Path | str, settings: Behaviour, name: str, work: Work = Work()
) -> PromptStates:
    """Reads contributions and screen of every memory on the prompts of a behaviour, in the model's own number type.

    Args:
        model: folder of the model step.
        encode: the table `behaviours/<name>/prompts.parquet`.
        triggers: file `triggers.h5`, for mean coefficients.
        settings: of the behaviour.
        name: of the behaviour.
        work: the device, tokens per pass, and the shard of the prompts.
    Returns:
        What `write_states` writes.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; states are not finite; or the model cannot be
            differentiated.
    """
    from ffkv.branches.behaviours.states import read_states
    from ffkv.model.checkpoint.load import load
    from ffkv.model.head.head_file import load_head

    anatomy = read_anatomy(model)
    examples = read_triggers(triggers, anatomy.identity)
    frame = _used(encode, anatomy)
    loaded = load(model, work.device, work.max_memory)
    head = load_head(Path(model), work.device)
    rows = _rows_of_shard(len(frame), work)
    own = frame.iloc[rows]
    attributes = {**examples.attributes, "settings": settings.model_dump(), "shard": work.part.index}
    how = (examples.mean, settings.baseline, work.batch_tokens, attributes)
    return read_states(loaded, head, _encoded(own), own["prompt"].to_numpy(), *how)


def write_states(path: Path | str, states: PromptStates) -> None:
    """Writes `behaviours/<name>/states/<shard>.h5`."""
    largest = int(np.diff(states.layer_offset).max())
    with hdf5.create(path, KIND, states.attributes) as file:
        datasets.write(file, states, {"largest_layer": largest})


def _rows_of_shard(count: int, work: Work) -> range:
    """Returns the prompts of a shard: whole blocks."""
    blocks = work.part.of(-(-count // BLOCK))
    return range(blocks.start * BLOCK, min(blocks.stop * BLOCK, count))


def _used(encode: Path | str, anatomy: Anatomy) -> pd.DataFrame:
    frame = tables.read_all([encode], anatomy.identity)
    return frame[frame["part"] != ""].reset_index(drop=True)


def _encoded(frame: pd.DataFrame) -> list[Encoded]:
    return [
        Encoded(
            np.asarray(row.clean, np.int64),
            np.asarray(row.patch, np.int64),
            int(row.answer),
            int(row.wrong),
            "",
            int(row.tokens),
        )
        for row in frame.itertuples()
    ]


def choose_memories(
    encode: Path | str,
    read: Iterable[Path | str],
    settings: Behaviour,
    name: str,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Tests the contrast of every memory on one half of the prompts, estimates it on the other, and chooses candidates.

    Args:
        encode: the table `behaviours/<name>/prompts.parquet`.
        read: the files `behaviours/<name>/states/<shard>.h5`, each once.
        settings: of the behaviour.
        name: of the behaviour.
        seed: the run's seed.
    Returns:
        The tables `MEMORIES`, `ANSWERS` and `STABILITY` of `ffkv.branches.behaviours.tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; or prompts are missing.
    """
    from ffkv.base.errors import UserError

    frame = tables.read_all([encode])
    parts = []
    for path in read:
        with hdf5.open(path, KIND, frame.attrs) as file:
            parts.append(datasets.read(file, PromptStates, attributes=dict(file.attrs)))
    states = join(parts)
    attributes = states.attributes
    frame = frame[frame["part"] != ""].reset_index(drop=True)
    if states.prompt.tolist() != frame["prompt"].tolist():
        raise UserError(f"The files of --read do not have the prompts of {encode}, each once and in their order.")
    part, positive = frame["part"].to_numpy(str), frame["positive"].to_numpy(bool)
    labels = frame["label"].to_numpy(str)
    memories = measure_memories(states, part, positive, settings, seed).assign(behaviour=name)
    answers = frame[["prompt", "label", "part"]].assign(
        behaviour=name,
        difference=states.difference,
        patch_difference=states.patch_difference,
        probability=states.probability,
    )
    stability = pd.DataFrame(measure_stability(states, part, positive, labels, settings, seed)).assign(behaviour=name)
    return (
        tables.identify(MEMORIES.frame(memories), attributes),
        tables.identify(ANSWERS.frame(answers), attributes),
        tables.identify(STABILITY.frame(stability), attributes),
    )


def measure_behaviour(
    model: Path | str,
    encode: Path | str,
    memories: Path | str,
    answers: Path | str,
    triggers: Path | str,
    prefixes: Path | str,
    validation: Path | str,
    settings: Behaviour,
    name: str,
    seed: int = 0,
    work: Work = Work(),
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Patches candidates, and sets of memories, on prompts of the second half, beside controls of equal length.

    The model computes in float32. Nothing is measured of two lists, nor of a behaviour that the model does not have: its accuracy
    is below `minimum_accuracy`.

    Args:
        model: folder of the model step.
        encode: the table `behaviours/<name>/prompts.parquet`.
        memories: the table `behaviours/<name>/memories.parquet`.
        answers: the table `behaviours/<name>/answers.parquet`.
        triggers: file `triggers.h5`, for mean coefficients.
        prefixes: file `sampled_prefixes.h5`, for side effects.
        validation: file `corpus/validation.h5`.
        settings: of the behaviour.
        name: of the behaviour.
        seed: the run's seed.
        work: the device, tokens per pass, and the shard of the prompts, and of the prefixes.
    Returns:
        The tables `EFFECTS`, `SETS` and `SIDE_EFFECTS` of `ffkv.branches.behaviours.tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; or the model cannot be changed while it runs.
    """
    from ffkv.branches.behaviours.measure import Texts, measure
    from ffkv.model.effects.running import running

    anatomy = read_anatomy(model)
    examples = read_triggers(triggers, anatomy.identity)
    frame = _used(encode, anatomy)
    chosen = tables.read_all([memories], anatomy.identity)
    accuracy = accuracy_of(tables.read_all([answers], anatomy.identity))
    made: dict[Table, list[dict]] = {EFFECTS: [], SETS: [], SIDE_EFFECTS: []}
    if accuracy >= settings.minimum_accuracy:  # not of two lists, whose accuracy is NaN
        frame = frame[frame["part"] == words.ESTIMATE].head(settings.effect_prompts).reset_index(drop=True)
        own = frame.iloc[_rows_of_shard(len(frame), work)]
        drawn, others = _draw_prefixes(prefixes, validation, anatomy, settings, seed)
        of_shard = _rows_of_shard(len(drawn), work)
        other_text = [others[n] for n in of_shard], [drawn[n] for n in of_shard]
        with running(model, work, whole=settings.positions == "all") as its:
            texts = Texts(_encoded(own), own["prompt"].tolist(), *other_text, examples.mean)
            made = measure(its, chosen, texts, settings, seed, name)
    effects, of_sets, side_effects = (
        tables.identify(table.frame(pd.DataFrame(rows).assign(behaviour=name)), examples.attributes)
        for table, rows in made.items()
    )
    return effects, of_sets, side_effects


def graph_behaviour(
    model: Path | str,
    encode: Path | str,
    answers: Path | str,
    triggers: Path | str,
    settings: Behaviour,
    name: str,
    seed: int = 0,
    work: Work = Work(),
) -> tuple[pd.DataFrame, ...]:
    """Makes the graph of a behaviour: one half of the prompts chooses its memories, the other half tells what they do.

    The model computes in float32. There is no graph if none was asked for, and where `measure_behaviour` measures nothing.

    Args:
        model: folder of the model step.
        encode: the table `behaviours/<name>/prompts.parquet`.
        answers: the table `behaviours/<name>/answers.parquet`.
        triggers: file `triggers.h5`, for mean coefficients.
        settings: of the behaviour.
        name: of the behaviour.
        seed: the run's seed.
        work: the device, and tokens per pass.
    Returns:
        The tables `GRAPHS` of `ffkv.branches.behaviours.graph_tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; or the model cannot be differentiated, or changed while
            it runs.
    """
    anatomy = read_anatomy(model)
    examples = read_triggers(triggers, anatomy.identity)
    frame = _used(encode, anatomy)
    made: dict[str, pd.DataFrame] = {}
    accuracy = accuracy_of(tables.read_all([answers], anatomy.identity))
    if settings.graph_prompts and accuracy >= settings.minimum_accuracy:
        from ffkv.branches.behaviours.graph import make_graph, read_half
        from ffkv.model.effects.running import running

        halves = [frame[frame["part"] == part].head(settings.graph_prompts) for part in (words.CHOOSE, words.ESTIMATE)]
        with running(model, work, whole=settings.positions == "all") as its:
            choosing, telling = (read_half(its, _encoded(half), examples.mean, settings.baseline) for half in halves)
            made = make_graph(its, choosing, telling, settings, seed, name)
    return tuple(
        tables.identify(each.frame(made.get(each.name, pd.DataFrame()).assign(behaviour=name)), examples.attributes)
        for each in GRAPHS
    )


def _draw_prefixes(
    prefixes: Path | str, validation: Path | str, anatomy: Anatomy, settings: Behaviour, seed: int
) -> tuple[list[int], list[Encoded]]:
    """Draws sampled prefixes: their numbers, and their tokens with the one that follows as answer."""
    with hdf5.open(prefixes, "sampled prefixes", anatomy.identity) as file:
        sentence, position, following = (file[name][...] for name in ("sentence", "position", "next_token"))
        corpus = read_corpus(Path(validation), dict(file.attrs))
    generator = random_stream(seed, Purpose.SIDE_EFFECT_PREFIXES)
    count = min(settings.side_effect_prefixes, len(sentence))
    drawn = np.sort(generator.choice(len(sentence), count, replace=False)).tolist()
    found = []
    for n in drawn:
        ids = corpus.prefix_ids(sentence[n], position[n])
        tokens = len(ids) - len(corpus.bos) if settings.positions == "all" else 1
        found.append(Encoded(ids, ids[:0], int(following[n]), NO_TOKEN, "", tokens))
    return drawn, found


def summarize_behaviours(
    model: Path | str,
    encode: Iterable[Path | str],
    memories: Iterable[Path | str],
    answers: Iterable[Path | str],
    stability: Iterable[Path | str],
    effects: Iterable[Path | str],
    sets: Iterable[Path | str],
    side_effects: Iterable[Path | str],
    graph_sets: Iterable[Path | str],
    graph_nodes: Iterable[Path | str],
    graph_edges: Iterable[Path | str],
    graph_paths: Iterable[Path | str],
    projections: Iterable[Path | str],
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all behaviours for the report's section of behaviours.

    Args:
        model: folder of the model step.
        encode: the tables `behaviours/<name>/prompts.parquet`, each once.
        memories: the tables `behaviours/<name>/memories.parquet`, each once.
        answers: the tables `behaviours/<name>/answers.parquet`, each once.
        stability: the tables `behaviours/<name>/stability.parquet`, each once.
        effects: the tables `behaviours/<name>/effects/<shard>.parquet`, each once.
        sets: the tables `behaviours/<name>/sets/<shard>.parquet`, each once.
        side_effects: the tables `behaviours/<name>/side_effects/<shard>.parquet`, each once.
        graph_sets, graph_nodes, graph_edges, graph_paths: the tables of `graph_behaviour`, each once.
        projections: the files `values/projections/<group>.h5`, each once.
        seed: the run's seed.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model.
    """
    anatomy = read_anatomy(Path(model))
    every = {
        key: tables.read_all(paths, anatomy.identity)
        for key, paths in {
            "encode": encode,
            "memories": memories,
            "answers": answers,
            "stability": stability,
            "effects": effects,
            "sets": sets,
            "side_effects": side_effects,
        }.items()
    }
    vocabulary = read_vocabulary(Path(model))
    top_token = {
        (layer, memory): token
        for each in (read_projections(path, anatomy.identity) for path in projections)
        for layer, memory, token in zip(each.layer.tolist(), each.memory.tolist(), each.top.tolist())
    }
    made: dict[Table, list[pd.DataFrame]] = {each: [] for each in SUMMARIES}
    for name in every["encode"]["behaviour"].drop_duplicates():
        own = {key: table[table["behaviour"] == name] for key, table in every.items()}
        for table, frame in summaries.summarize(own, top_token, vocabulary, seed).items():
            if len(frame):
                made[table].append(frame.assign(behaviour=name))
    for table, paths in zip(ALL_GRAPHS, (graph_sets, graph_nodes, graph_edges, graph_paths), strict=True):
        frame = tables.read_all(paths, anatomy.identity)
        if "token" in table.names:
            places = zip(frame["layer"], frame["memory"], strict=True)
            frame["token"] = [vocabulary[top_token[place]] for place in places]
        made[table] = [frame]
    return {
        table.name: table.frame(pd.concat(frames, ignore_index=True) if frames else [])
        for table, frames in made.items()
    }
