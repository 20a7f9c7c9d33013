"""Random models, whose memories share nothing, and random texts, whose keys have no patterns."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM as CausalModel
from transformers import GPT2Config, LlamaConfig, OPTConfig

import ffkv
from benchmarks.inputs import word_tokenizer
from benchmarks.known_truths import FALSE, Case
from ffkv.base.multiple_tests import SIGNIFICANT, q_values
from ffkv.branches.given import Given
from ffkv.branches.intervention import units
from ffkv.branches.intervention.measure import measure_interventions
from ffkv.branches.keys.key_sample import random_examples
from ffkv.branches.keys.patterns import detect_patterns, prepare_detector
from ffkv.branches.keys.topics import place_prefixes, topic_p_values
from ffkv.branches.settings import Batches, Corpus, Intervention, Keys, Model, Prefixes, Translation, Triggers, Values
from ffkv.branches.translation.average import average_jacobians
from ffkv.branches.translation.jacobian import read_jacobians
from ffkv.branches.translation.maps import write_maps
from ffkv.branches.translation.measure import measure_translation
from ffkv.branches.translation.section import answer
from ffkv.branches.translation.summarize import summarize_differences, summarize_readings
from ffkv.branches.translation.tables import AGREEMENT
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv_comparison.same_memories import find_partners, standardise

WORDS, MEMORIES = 120, 128
TOPICS, TEXT_WORDS = 15, 1500
CONFIGS: dict[str, Any] = {
    "GPT-2": GPT2Config(
        n_layer=3, n_embd=32, n_head=2, n_inner=MEMORIES, vocab_size=WORDS, n_positions=32, bos_token_id=0, eos_token_id=0
    ),
    "Llama": LlamaConfig(
        num_hidden_layers=3, hidden_size=32, num_attention_heads=2, intermediate_size=MEMORIES, vocab_size=WORDS
    ),
    "OPT": OPTConfig(
        num_hidden_layers=3, hidden_size=32, word_embed_proj_dim=32, num_attention_heads=2, ffn_dim=MEMORIES,
        vocab_size=WORDS, max_position_embeddings=32,
    ),
}  # fmt: skip
SECOND = ("mlp.c_proj", "mlp.down_proj", "fc2")  # the second matrices of these models


def _random_model(name: str, seed: int) -> torch.nn.Module:
    """Returns a model with random weights of visible size."""
    torch.manual_seed(seed)
    model = CausalModel.from_config(CONFIGS[name]).eval()
    for parameter in model.parameters():
        parameter.data += (0.2 if parameter.ndim == 1 else 0.4) * torch.randn_like(parameter)
    return model


def partners(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Partners of memories of random models of other seeds, over the same text."""
    pairs = max(repetitions // 50, 2)
    for name in CONFIGS:
        small, false, tested = 0, 0, 0
        for _ in range(pairs):
            ids = torch.from_numpy(np.minimum(generator.zipf(1.3, (800, 12)), WORDS - 1))
            own, other = (_coefficients(_random_model(name, int(generator.integers(2**31))), ids) for _ in range(2))
            rows = generator.choice(3 * MEMORIES, 200, replace=False)
            coefficients = standardise(np.concatenate(own, 1)[:, rows])
            coefficients = coefficients[:, np.isfinite(coefficients).all(0)]
            p = find_partners(coefficients, other)["p_value"].to_numpy()
            small, tested = small + (p <= 0.05).sum(), tested + len(p)
            false += int((q_values(p, len(p)) <= SIGNIFICANT).any())
        truth, size = f"{name} with random weights, two seeds", f"3 layers of {MEMORIES}"
        yield Case("partner (comparison): p up to 0.05", truth, size, small, tested, FALSE, tested // 10)
        yield Case("partner (comparison): any in a run", truth, size, false, pairs, FALSE)


@torch.no_grad()
def _coefficients(model: torch.nn.Module, ids: torch.Tensor) -> list[np.ndarray]:
    """Returns the coefficients of each layer at the last token [layer][prefix, memory]."""
    found: list[np.ndarray] = []

    def keep(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found.append(inputs[0].reshape(len(ids), -1, MEMORIES)[:, -1].numpy())

    for name, module in model.named_modules():
        if name.endswith(SECOND):
            module.register_forward_pre_hook(keep)
    model(ids)
    return found


def interventions(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Interventions on random models, measured on the top tokens of another memory's value; and their placebo."""
    settings = Intervention(
        memories=20, examples=2, controls=99, directions=0, similar=0, tokens=3, top_k=[0], top_k_prefixes=1
    )
    measure = units.measure_units

    def measure_others(model: Any, units: Any, tokens: Any, others: Any, *rest: Any) -> Any:
        return measure(model, units, others, tokens, *rest)

    models = max(repetitions // 250, 1)
    found, idle, placebo = {}, 0, 0
    for number in range(models):
        for name in ("GPT-2", "OPT"):
            with tempfile.TemporaryDirectory() as folder, mock.patch.object(units, "measure_units", measure_others):
                files = _make_inputs(Path(folder), name, int(generator.integers(2**31)), generator)
                given = Given(ffkv.Work("cpu", batch_tokens=2048), **files)
                measured = measure_interventions(given, settings, seed=number)
            for reach, rows in measured.by_memory.groupby("reach"):
                layers = rows.groupby("layer")["q_value"].min() <= SIGNIFICANT
                found.setdefault((name, reach), []).append((rows["p_value"] <= 0.05, layers))
            removed = measured.by_prefix.query("source == 'placebo'")
            idle, placebo = idle + int((removed["coefficient"] == 0).sum()), placebo + len(removed)
    for (name, reach), results in found.items():
        p, layers = (np.concatenate(each) for each in zip(*results))
        truth = f"{name} with random weights, tokens of another value, {reach} effect"
        yield Case("p of interventions: up to 0.05", truth, "99", int(p.sum()), len(p), FALSE, len(p) // 4)
        yield Case("q of interventions: any in a layer", truth, "99", int(layers.sum()), len(layers), FALSE)
    yield Case("placebo: removals that cannot change anything", "random weights", "10 prefixes", idle, placebo, (0, 0))


def _make_inputs(folder: Path, name: str, seed: int, generator: np.random.Generator) -> dict[str, Path]:
    """Writes what `measure_interventions` reads, of a random model and random sentences."""
    model, train, checkpoint = folder / "model", folder / "train.h5", folder / "checkpoint"
    _random_model(name, seed).save_pretrained(checkpoint)
    word_tokenizer(WORDS).save_pretrained(checkpoint)
    words = np.minimum(generator.zipf(1.2, (150, 10)), WORDS - 1)
    (folder / "text.txt").write_text("\n".join(" ".join(f"w{word}" for word in line) for line in words))
    model.mkdir()
    ffkv.prove(Model(checkpoint=str(checkpoint), device="cpu")).write(model, folder / "values.h5")
    corpus = Corpus(dataset="files", train=[str(folder / "text.txt")], splitter="line", validation_share=0.2)
    for split in ("train", "validation"):
        ffkv.encode_corpus(model, split, corpus, folder / f"{split}.h5")
    triggers, projections = folder / "triggers.h5", folder / "projections.h5"
    found = ffkv.find_triggers(model, train, Triggers(per_key=5), Batches(tokens=512), work=ffkv.Work("cpu"))
    ffkv.write_triggers(triggers, found)
    files = {"model": model, "triggers": triggers, "train": train, "validation": folder / "validation.h5"}
    files["values"] = folder / "values.h5"
    given = Given(ffkv.Work("cpu"), **files)
    projected, _ = project_values(given, Values(top_tokens=5))
    write_projections(projections, projected)
    sampled = folder / "sampled.h5"
    ffkv.sample_prefixes(model, files["validation"], sampled, Prefixes(count=10), work=ffkv.Work("cpu"))
    return files | {"projections": projections, "prefixes": sampled}


def lenses(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Values of random models, read through their own Jacobians, and through these of random directions."""
    models = max(repetitions // 50, 3)
    yes, above, layers = 0, 0, 0
    for name in (tuple(CONFIGS) * models)[:models]:
        with tempfile.TemporaryDirectory() as folder:
            files = _make_inputs(Path(folder), name, int(generator.integers(2**31)), generator)
            given = Given(ffkv.Work("cpu"), **files)
            sums, maps = Path(folder) / "sums.h5", Path(folder) / "maps.h5"
            settings = Translation(texts=8, tokens=10, skip=2, reading_texts=0)
            read_jacobians(given, settings)(sums)
            seed = int(generator.integers(2**31))
            write_maps(maps, average_jacobians(Given(ffkv.Work("cpu"), **files, jacobians=[sums]), settings, seed)[0])
            _, by_memory, by_prefix = measure_translation(Given(ffkv.Work("cpu"), **files, jacobian_maps=maps))
            unigram = given.competing.count_next_tokens(WORDS)
        table = summarize_differences(by_memory, 3)
        run = SimpleNamespace(table=lambda name, table=table: table, anatomy=SimpleNamespace(weights="checkpoint"))
        yes += answer(run, None, "jacobian").startswith("Yes")
        rates = summarize_readings(by_memory, by_prefix, unigram, seed)[AGREEMENT.name].query("reading == 'rotated'")
        own, permuted = (rates[rates["source"] == source].set_index("layer") for source in ("trigger", "permuted"))
        above, layers = above + int((own["rate"] > permuted["high"]).sum()), layers + len(own)
    truth, size = f"{', '.join(CONFIGS)} with random weights", f"3 layers of {MEMORIES}"
    yield Case("answer, jacobian: yes", truth, size, yes, models, FALSE)
    yield Case("rotated Jacobian (figure 4): a layer above permuted keys", truth, size, above, layers, FALSE)


def patterns(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Patterns in random prefixes of a made-up text with topics."""
    layers, keys = max(repetitions // 25, 4), 25
    shallow, topics, small = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.h5"
        documents = [Document(str(number), text) for number, text in enumerate(_made_up_texts(400, generator))]
        encoded = encode(documents, word_tokenizer(TEXT_WORDS), 60, Corpus(pretokenized=True, splitter="line"))
        write_corpus(path, encoded, [0], True, {})
        competing = CompetingPrefixes(read_corpus(path), once=True)
        settings, seed = Keys(background_prefixes=4000), int(generator.integers(2**31))
        detector = prepare_detector(competing, settings, seed)
        for layer in range(layers):
            random = [
                each.prefixes for each in random_examples(competing, keys, settings.pattern_triggers, seed, layer)
            ]
            families = {pattern.family for of_key in detect_patterns(random, detector) for pattern in of_key}
            shallow, topics = shallow + ("shallow" in families), topics + ("semantic" in families)
            placed = place_prefixes(random, [()] * keys, detector.pool)
            small += (topic_p_values(placed, detector.pool, settings.minimum_prefixes, seed + layer) <= 0.05).sum()
    truth = "random prefixes of a text with topics"
    yield Case("shallow pattern: any in a layer", truth, f"{keys} keys", shallow, layers, FALSE)
    yield Case("topic: any in a layer", truth, f"{keys} keys", topics, layers, FALSE)
    yield Case("topic: p up to 0.05", truth, "25 prefixes", small, layers * keys, FALSE, layers * keys // 2)


def _made_up_texts(count: int, generator: np.random.Generator) -> Iterator[str]:
    """Yields documents of five lines: frequent words, rare words, and words of the document's topic."""
    for _ in range(count):
        topic, lines = generator.integers(TOPICS), []
        for _ in range(5):
            size = generator.integers(6, 25)
            about = generator.integers(WORDS + 40 * topic, WORDS + 40 * (topic + 1), size)
            rare = np.minimum(generator.zipf(1.3, size) + WORDS + 40 * TOPICS, TEXT_WORDS - 1)
            frequent = np.minimum(generator.zipf(1.1, size), WORDS - 1)
            words = np.select([generator.random(size) < share for share in (0.45, 0.4)], [frequent, about], rare)
            lines.append(" ".join(f"w{word}" for word in words))
        yield "\n".join(lines)
