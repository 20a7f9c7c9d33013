"""Helpers of tests in several rooms: tokenizers, tiny checkpoints, sentences, and a model whose answers are known."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from forks import with_forks
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
)

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.branches.commands import command_group
from ffkv.branches.registry import BRANCHES
from ffkv.model.step import prove
from ffkv.run.report.curve import lines
from ffkv.run.report.registry import has_figure, load_figure
from ffkv.run.results.expected import TABLES
from ffkv.run.results.run import Run
from tools.architectures.tiny import VARIANTS, tiny_model

ROOT = Path(__file__).parents[1]
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}  # the environment of commands that ask nothing of the hub
FULL = "FFKV_FULL" in os.environ  # as many cases as `make test-failures` and `make test-faults` try
# Models of each way to build a layer: plain, gated, experts, parallel, norm after the layer, several banks, post-norm, fairseq.
LAYER_KINDS = ("gpt2", "llama", "mixtral", "gpt-neox", "gemma2", "qwen2-moe", "gpt-oss", "opt-post-norm", "fairseq")
WORDS = ["<bos>", *"abcdefghijklmnop"]
SMALL = {
    "vocab_size": 60,
    "max_position_embeddings": 32,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
CONFIGS = {
    "gpt2": GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=60, n_positions=32, bos_token_id=0, eos_token_id=0),
    "gpt2-relu": GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        vocab_size=60,
        n_positions=32,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
    ),
    "opt": OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16),
    "opt-post-norm": OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=8, do_layer_norm_before=False),
    "gpt-neox": GPTNeoXConfig(**SMALL, intermediate_size=24),
    "gpt-neox-sequential": GPTNeoXConfig(**SMALL, intermediate_size=24, use_parallel_residual=False),
    "llama": LlamaConfig(**SMALL, intermediate_size=24),
    "gemma2": Gemma2Config(**SMALL, **GROUPED, intermediate_size=24),
    "phi3": Phi3Config(**SMALL, intermediate_size=24, pad_token_id=0),
    "mixtral": MixtralConfig(**SMALL, **GROUPED, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2),
    "qwen2-moe": Qwen2MoeConfig(
        **SMALL, **EXPERTS, moe_intermediate_size=12, shared_expert_intermediate_size=20, intermediate_size=24
    ),
    "gpt-oss": GptOssConfig(**SMALL, **GROUPED, num_local_experts=4, num_experts_per_tok=2, intermediate_size=12),
}


def refused(message: str) -> Any:
    """Inside the `with` statement a person is told: by a `UserError` that a regular expression is found in."""
    return pytest.raises(UserError, match=message)


def tries(full: int) -> int:
    """How many examples of a property are tried: a quarter, drawn anew in each run of the tests; with `FULL`, all of them."""
    return full if FULL else max(1, full // 4)


def word_tokenizer(words: list[str], bos: bool = True) -> PreTrainedTokenizerFast:
    """One token a word; puts `<bos>` (id 0) in front if asked to."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def known_words() -> PreTrainedTokenizerFast:
    """The tokenizer of the random checkpoints: a token each for 59 words."""
    return word_tokenizer(["<bos>", *[f"w{number}" for number in range(59)]])


def byte_level(lines: list[str], vocabulary: int, *splits: str, words: bool = True) -> Tokenizer:
    """A byte-level tokenizer that learns from lines and splits texts by regular expressions, then into `words`, as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if splits else parts[0]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    known = {"special_tokens": ["<s>"], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocabulary, **known))
    return tokenizer


def some_ids(seed: int, sentences: int = 2, tokens: int = 9) -> torch.Tensor:
    """Random tokens of the random checkpoints [sentence, token]."""
    return torch.randint(1, 60, (sentences, tokens), generator=torch.Generator().manual_seed(seed))


def edit_json(path: Path, **changes) -> dict:
    """Changes entries of a JSON file. Returns what was in it."""
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | changes))
    return before


def random_model(config) -> torch.nn.Module:
    """A model of a config whose weights are random and of visible size, biases and norms included."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def random_checkpoint(folder: Path, kind: str, seed: int = 0) -> Path:
    """A tiny model of a family with random weights, biases included, and a word tokenizer of 60 words.

    kind: one of CONFIGS, any model type of transformers, or one of VARIANTS.
    """
    torch.manual_seed(seed)
    its = VARIANTS.get(kind, {"type": kind, "settings": None})
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]) if kind in CONFIGS else None
    model = model or tiny_model(its["type"], seed, its["settings"])
    for parameter in model.parameters() if kind in CONFIGS else ():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.5) + (
            parameter.data if parameter.ndim == 1 else 0
        )
    model.save_pretrained(folder)
    known_words().save_pretrained(folder)
    return folder


def prove_into(folder: Path, checkpoint: Path, **more) -> Path:
    """Proves a checkpoint, with `more` settings. Returns the folder of the model step; values.h5 lies beside it."""
    proven = prove(Model(checkpoint=str(checkpoint), device="cpu", **more))
    (folder / "model").mkdir(parents=True)
    proven.write(folder / "model", folder / "values.h5")
    return folder / "model"


def random_sentences(seed: int, count: int, longest: int = 14, words: int = 59) -> list[str]:
    """Sentences of random words of the random checkpoints' vocabulary."""
    generator = np.random.default_rng(seed)
    return [
        " ".join(f"w{word}" for word in generator.integers(0, words, generator.integers(2, longest + 1)))
        for _ in range(count)
    ]


def detector_checkpoint(folder: Path) -> Path:
    """A GPT-2 with ReLU whose every number can be worked out by hand.

    Embedding and head are the identity over 17 words, attention and positions are zero, norms are plain. The residual of a
    prefix is the unit vector of its last word w, so x = LN(e_w) has sqrt(16) = 4 at w and -1/4 elsewhere. Two layers of
    four memories each; key i detects one word, so m_i = 4 when the last word is that one, else 0; value i writes another:

        layer 0: a -> b (weight 1: y = 4 e_b beats the residual e_a), b -> c (weight 0.1: 0.4 e_c does not), c -> c, dead
        layer 1: d -> e (weight 1), d -> f (weight 0.5), e -> a (weight 1), dead
    """
    config = GPT2Config(
        n_layer=2,
        n_embd=17,
        n_head=1,
        n_inner=4,
        vocab_size=17,
        n_positions=16,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.data = (
            torch.ones_like(parameter) if "ln_" in name and name.endswith("weight") else torch.zeros_like(parameter)
        )
    model.transformer.wte.weight.data = torch.eye(17)
    links = {
        0: [("a", "b", 1.0), ("b", "c", 0.1), ("c", "c", 1.0)],
        1: [("d", "e", 1.0), ("d", "f", 0.5), ("e", "a", 1.0)],
    }
    for layer, memories in links.items():
        mlp = model.transformer.h[layer].mlp
        mlp.c_fc.bias.data[3] = -100
        for memory, (detects, writes, weight) in enumerate(memories):
            mlp.c_fc.weight.data[WORDS.index(detects), memory] = 1
            mlp.c_proj.weight.data[memory, WORDS.index(writes)] = weight
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


def snakemake(
    directory: Path, configfile: Path | str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Runs the workflow with results in a folder of its own. It and its jobs are forks of a process that has their libraries.

    environment: another one than this process's without the hub; `OFFLINE` for processes that are no forks.
    """
    command = ["snakemake", "--snakefile", ROOT / "Snakefile", "--directory", directory, "--configfile", configfile]
    usual = "--workflow-profile none --cores 2 --max-threads 1 --rerun-incomplete --show-failed-logs"
    command += usual.split()
    environment = environment or with_forks(OFFLINE)
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=900)


def make_run(directory: Path, configfile: Path | str, *arguments: str) -> None:
    """Makes the runs of a settings file, or the files that are named."""
    done = snakemake(directory, configfile, *arguments)
    assert done.returncode == 0, done.stderr[-8000:]


def assert_same_data(folder: Path, expected: Path) -> None:
    """Two folders in which configs/tiny.yaml was run hold the same bytes, and no unfinished file."""
    found, wanted = _data(folder), _data(expected)
    differ = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
    assert not differ, differ
    unfinished = list(folder.rglob("*.partial"))
    assert not unfinished, unfinished


def _data(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of the run, by path, but of those that say how long a step took."""
    timed = {"logs", "benchmarks", "index.html"}
    paths = [path for top in ("results/tiny", "reports/tiny") for path in (folder / top).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if not timed & set(path.relative_to(folder).parts)
    }


def settings_file(folder, **changes):
    """configs/tiny.yaml with changes at its top level."""
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text()) | changes
    (folder / "settings.yaml").write_text(yaml.safe_dump(config))
    return folder / "settings.yaml"


def described_columns(negative: bool = False) -> dict[str, list[str]]:
    """The columns of each table by its path; with those about negative coefficients, if asked."""
    return {
        path: [column.name for column in table.columns if negative or not column.optional]
        for path, table in TABLES.items()
    }


def described(folder) -> list[str]:
    """The datasets below a folder, each of which must say what it is."""
    seen = []

    def check(name, item):
        if isinstance(item, h5py.Dataset) and not name.startswith("dimension/"):
            seen.append(name)
            assert item.attrs["description"] and item.attrs["unit"], name
            assert all(len(axis) for axis in item.dims), name
            assert item.fletcher32 or item.is_virtual or 0 in item.shape, name

    for path in folder.rglob("*.h5"):
        with h5py.File(path) as file:
            assert {"format", "kind", "versions"} <= set(file.attrs)
            file.visititems(check)
    return seen


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Makes reports with their captions, but draws no figure: that takes most of the seconds, and other tests look at drawings."""

    def beside(run: Run, name: str, control: Run | None) -> tuple[None, Run | None]:
        shown = control is not None and has_figure(control, name) and lines(load_figure(name).curves, control)
        return None, control if shown else None

    patch.setattr("ffkv.run.report.section.draw_beside", beside)
    patch.setattr("ffkv.run.report.svg.write_svg", lambda figure, name, *texts: f'<svg id="{name}"></svg>')


def obeying_rights(*command: str) -> list[str]:
    """The command, so that it obeys the rights of files even if root starts it."""
    if os.geteuid():
        return list(command)
    without = "-dac_override,-dac_read_search"
    return ["setpriv", f"--inh-caps={without}", f"--bounding-set={without}", *command]


def call_branch(name: str, line: str) -> str:
    """What a command of a branch prints, such as "summarize --model ..."."""
    done = CliRunner().invoke(command_group(BRANCHES[name]), line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def without_package(name: str, *modules: str) -> str:
    """The beginning of a program that does not find a package of packages/, nor the modules."""
    hidden = "".join(f"sys.modules[{module!r}] = None\n" for module in modules)
    return f"""
import sys
{hidden}from ffkv.base import doors
found = doors.entries
doors.entries = lambda door: {{key: each for key, each in found(door).items() if each.dist.name != {name!r}}}
"""
