"""Whole runs through Snakemake."""

import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import yaml
from support import ROOT, random_checkpoint, random_sentences, snakemake, word_tokenizer

from ffkv import tables

pytestmark = pytest.mark.workflow
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
WIKITEXT = ROOT.parent / "shared" / "wikitext2" / "valid.txt"


def settings_file(folder, **changes):
    """configs/tiny.yaml with changes at its top level."""
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text()) | changes
    (folder / "settings.yaml").write_text(yaml.safe_dump(config))
    return folder / "settings.yaml"


def planned(output: str) -> set[str]:
    """The rules that a dry run would run."""
    return set(re.findall(r"^rule (\w+):", output, re.M))


def documented_columns(negative: bool = False) -> dict[str, list[str]]:
    """The columns that docs/architecture.md promises, by file; with those of models with negative coefficients if asked."""
    rows = re.findall(
        r"^\| `([a-z_]+/[a-z_/<>]+\.(?:csv|parquet))`[^|]*\| ([^\n]+?) \|$",
        (ROOT / "docs/architecture.md").read_text(),
        re.M,
    )
    if negative:
        also = re.compile(r" \(with negative coefficients also: ([^)]*)\)")
        rows = [(path, also.sub(r", \1", columns)) for path, columns in rows]
    without_notes = {path: re.sub(r"\([^)]*\)", "", columns) for path, columns in rows}
    return {path: [column.strip() for column in columns.split(",")] for path, columns in without_notes.items()}


def test_a_run_ends_in_a_report(tiny):
    page = (tiny / "reports/tiny/index.html").read_text()
    assert all(f"figure_{number}" in page or f"Figure {number}" in page for number in range(2, 12))
    assert len(list((tiny / "reports/tiny/figures").glob("*.svg"))) >= 10


@pytest.mark.parametrize("path", documented_columns())
def test_every_table_has_the_columns_that_the_docs_promise(tiny, path):
    table = tables.read(tiny / "results/tiny" / path.replace("<group>", "0"))
    assert table.columns.tolist() == documented_columns()[path]
    assert len(table)


def described(folder) -> list[str]:
    """The datasets below a folder, each of which must say what it is."""
    seen = []

    def check(name, item):
        if isinstance(item, h5py.Dataset) and not name.startswith("dimension/"):
            seen.append(name)
            assert item.attrs["description"] and item.attrs["unit"], name
            assert all(len(axis) for axis in item.dims), name
            assert item.fletcher32 or 0 in item.shape, name

    for path in folder.rglob("*.h5"):
        with h5py.File(path) as file:
            assert {"format", "kind", "versions"} <= set(file.attrs)
            file.visititems(check)
    return seen


def test_every_dataset_says_what_it_is(tiny):
    assert len(described(tiny / "results")) > 50


def test_every_job_left_a_log_and_a_benchmark(tiny):
    jobs = {
        path.relative_to(tiny / "results/tiny/benchmarks").with_suffix("")
        for path in (tiny / "results/tiny/benchmarks").rglob("*.tsv")
    }
    logs = {
        path.relative_to(tiny / "results/tiny/logs").with_suffix("")
        for path in (tiny / "results/tiny/logs").rglob("*.log")
    }
    assert jobs == logs
    assert len(jobs) > 20


def test_a_second_run_does_nothing(tiny):
    again = snakemake(tiny, ROOT / "configs/tiny.yaml")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr + again.stdout


@pytest.mark.parametrize(
    ("change", "reruns"),
    [
        ({"report": {"title": "Another"}}, {"write_settings", "report", "all"}),
        (
            {"triggers": {"per_key": 21}},
            {
                "triggers",
                "merge_triggers",
                "key_patterns",
                "key_removal",
                "keys",
                "compare_values",
                "values",
                "write_settings",
                "report",
                "all",
            },
        ),
        (
            {"triggers": {"negative": False}},
            {
                "triggers",
                "merge_triggers",
                "key_patterns",
                "key_removal",
                "keys",
                "compare_values",
                "values",
                "write_settings",
                "report",
                "all",
            },
        ),
        ({"model": {"gpus": 2}}, {"write_settings", "report", "all"}),
        ({"composition": {"mass": 0.8}}, {"measure_composition", "composition", "write_settings", "report", "all"}),
        ({"refinement": {"changes": 3}}, {"refinement", "write_settings", "report", "all"}),
        ({"keys": {"minimum_prefixes": 4}}, {"key_patterns", "keys", "write_settings", "report", "all"}),
        (
            {"prefixes": {"count": 150}},
            {
                "prefixes",
                "merge_prefixes",
                "measure_composition",
                "composition",
                "measure_refinement",
                "refinement",
                "write_settings",
                "report",
                "all",
            },
        ),
    ],
)
def test_a_changed_setting_reruns_what_depends_on_it_and_nothing_else(tiny, tmp_path, change, reruns):
    dry = snakemake(tiny, settings_file(tmp_path, runs={"tiny": change}), "-n")
    assert dry.returncode == 0, dry.stdout
    assert planned(dry.stdout + dry.stderr) == reruns


def same_datasets(one, other):
    def compare(name, item):
        if isinstance(item, h5py.Dataset):
            np.testing.assert_array_equal(item[...], second[name][...], err_msg=f"{one}: {name}")

    with h5py.File(one) as first, h5py.File(other) as second:
        first.visititems(compare)


def test_shards_and_groups_change_no_number(tiny, tmp_path):
    """The tiny run has two shards and two groups of layers; here five, and three for two layers, from the same checkpoint."""
    checkpoint = {"checkpoint": str(tiny / "results/tiny/checkpoint")}
    done = snakemake(tmp_path, settings_file(tmp_path, shards=5, layer_groups=3, model=checkpoint))
    assert done.returncode == 0, done.stderr[-8000:]
    assert not (tmp_path / "results/tiny/checkpoint").exists()
    for name in ("triggers.h5", "prefixes.h5", "memories.h5", "corpus/train.h5", "corpus/validation.h5"):
        same_datasets(tiny / "results/tiny" / name, tmp_path / "results/tiny" / name)
    for path in (tiny / "results/tiny").glob("*/*.csv"):
        if path.parent.name != "checkpoint":
            assert (
                path.read_text() == (tmp_path / "results/tiny" / path.relative_to(tiny / "results/tiny")).read_text()
            ), path


@pytest.mark.parametrize("name", ["../config.yaml", *CONFIGS])
def test_every_settings_file_has_a_plan(tmp_path, name):
    dry = snakemake(tmp_path, ROOT / "configs" / name, "-n")
    assert dry.returncode == 0, dry.stderr
    assert "report" in planned(dry.stdout + dry.stderr)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"triggers": {"per_key": 0}}, "triggers.per_key is 0"),
        ({"trigers": {"per_key": 5}}, "trigers is no setting"),
        ({"model": {"device": "tpu"}}, "model.device is 'tpu'"),
        ({"runs": {"../out": {}}}, "../out is no run name"),
    ],
)
def test_bad_settings_stop_before_the_plan(tmp_path, change, message):
    refused = snakemake(tmp_path, settings_file(tmp_path, **change))
    assert refused.returncode != 0
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "results").exists()


BAD = {
    "a missing checkpoint": ({"model": {"checkpoint": "./nowhere"}}, "There is no checkpoint folder ./nowhere"),
    "a missing corpus file": (
        {"corpus": {"dataset": "files", "train": "no/such/*.txt"}},
        "No corpus file matches 'no/such/*.txt'",
    ),
    "a corpus of one sentence": (
        {"corpus": {"dataset": "files", "train": "one.txt", "validation": "one.txt"}},
        "1 sentences of two tokens or more",
    ),
    "an empty corpus": (
        {"corpus": {"dataset": "files", "train": "empty.txt", "validation": "empty.txt"}},
        "0 sentences of two tokens or more",
    ),
    "a missing field": (
        {"corpus": {"dataset": "files", "train": "rows.jsonl", "text_field": "body"}},
        "rows.jsonl has no field 'body'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_one_clear_message_and_no_file(tmp_path, case):
    change, message = BAD[case]
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    for name, text in {"one.txt": "w1 w2 w3\n", "empty.txt": "", "rows.jsonl": '{"text": "w1 w2"}\n'}.items():
        (tmp_path / name).write_text(text)
    config = {"model": {"checkpoint": str(checkpoint)}, "runs": {"bad": {}}, **change}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(config))
    failed = snakemake(tmp_path, tmp_path / "bad.yaml")
    assert failed.returncode != 0
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
    made = {
        path.name
        for path in (tmp_path / "results/bad").rglob("*")
        if path.is_file() and path.suffix not in (".log", ".tsv")
    }
    assert made <= {"settings.json", *([] if "checkpoint" in case else ["memories.h5"])} | {
        path.name for path in (tmp_path / "results/bad/model").glob("*")
    } | {"0.h5"}
    assert not (tmp_path / "results/bad/corpus").exists() or not list((tmp_path / "results/bad/corpus").glob("*.h5"))
    assert not (tmp_path / "reports/bad/index.html").exists()


@pytest.mark.skipif(not WIKITEXT.exists(), reason="WikiText's validation split is not beside the project")
@pytest.mark.parametrize("kind", ["gpt-neox", "mixtral"])
def test_a_local_checkpoint_on_wikitext(tmp_path, kind):
    """A random model of each promised family: nothing to learn from it, but every step has to work."""
    checkpoint = random_checkpoint(tmp_path / "a checkpoint's folder", kind)
    words = re.findall(r"\S+", WIKITEXT.read_text()[:20_000])
    word_tokenizer(["<bos>", *sorted(set(words), key=words.index)[:58], "<unk>"]).save_pretrained(checkpoint)
    corpus = {"dataset": "files", "train": str(WIKITEXT), "pretokenized": True, "txt_document": "line", "limit": 150}
    less = {"keys": {"per_layer": 10}, "prefixes": {"count": 300}}
    config = settings_file(tmp_path, model={"checkpoint": str(checkpoint)}, corpus=corpus, runs={kind: {}}, **less)
    done = snakemake(tmp_path, config)
    assert done.returncode == 0, done.stderr[-8000:]
    assert (tmp_path / f"reports/{kind}/index.html").exists()


def test_a_gated_model_is_read_on_both_sides_of_zero(tmp_path):
    """The embedded model has ReLU; a random Llama has negative coefficients and gates, from the triggers to the report."""
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "llama")
    for split, seed in (("train", 1), ("validation", 2)):
        (tmp_path / f"{split}.txt").write_text("\n".join(random_sentences(seed, 400)))
    corpus = {"dataset": "files", "train": "train.txt", "validation": "validation.txt", "splitter": "line"}
    less = {"keys": {"per_layer": 10}, "prefixes": {"count": 300}}
    config = settings_file(tmp_path, model={"checkpoint": str(checkpoint)}, corpus=corpus, runs={"both": {}}, **less)
    done = snakemake(tmp_path, config)
    assert done.returncode == 0, done.stderr[-8000:]
    results = tmp_path / "results/both"
    assert {f"negative/{name}" for name in ("coefficient", "gate", "minimum")} <= set(described(results))
    columns = documented_columns(negative=True)
    for path in ("keys/activity.csv", "values/memories/<group>.parquet", "values/agreement.csv"):
        assert tables.read(results / path.replace("<group>", "0")).columns.tolist() == columns[path]
    assert "negative" in tables.read(results / "values/agreement.csv")["source"].unique()
    with h5py.File(results / "triggers.h5") as file:
        for side, sign in ((file, 1), (file["negative"], -1)):
            found = side["sentence"][...] >= 0
            assert found.any()
            assert (np.sign(side["coefficient"][...]) == sign * found).all()
            assert (np.abs(side["gate"][...]) == found).all()
    page = (tmp_path / "reports/both/index.html").read_text()
    assert "Trigger examples of negative coefficients" in page
    assert "up: their signs" in page


ORACLE = ROOT.parent / "shared" / "oracle" / "model"


@pytest.mark.skipif(
    not (WIKITEXT.exists() and ORACLE.exists()), reason="the authors' checkpoint is not beside the project"
)
def test_the_authors_small_checkpoint_on_wikitext(tmp_path):
    """A trained fairseq model with the adaptive softmax, by the settings of the paper's own run."""
    config = yaml.safe_load((ROOT / "configs/paper.yaml").read_text())
    corpus = {"dataset": "files", "train": str(WIKITEXT), "limit": 300}
    config["corpus"] = {
        key: value for key, value in config["corpus"].items() if key not in ("config", "validation")
    } | corpus
    config |= {"model": {"checkpoint": str(ORACLE)}, "shards": 2, "layer_groups": 2, "runs": {"authors": {}}}
    config["prefixes"]["count"], config["keys"]["per_layer"] = 300, 10
    (tmp_path / "authors.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(tmp_path, tmp_path / "authors.yaml")
    assert done.returncode == 0, done.stderr[-8000:]
    assert (tmp_path / "reports/authors/index.html").exists()
    matching = tables.read(tmp_path / "results/authors/refinement/residual.csv")["share"]
    assert matching.iloc[-1] > 0.5 > matching.iloc[0]  # a trained model's residual comes to hold its prediction


def test_snakemakes_own_report_lists_the_figures(tiny, tmp_path):
    made = snakemake(tiny, ROOT / "configs/tiny.yaml", "--report", str(tmp_path / "report.zip"))
    assert made.returncode == 0, made.stderr
    listed = subprocess.run(
        ["python", "-m", "zipfile", "-l", tmp_path / "report.zip"], capture_output=True, text=True
    ).stdout
    assert "figure_4.svg" in listed


def test_the_rules_pass_snakemakes_lint():
    lint = subprocess.run(["snakemake", "--lint"], cwd=ROOT, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_a_damaged_file_is_named_and_nothing_wrong_is_analysed(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "copy")
    path = copy / "results/tiny/triggers.h5"
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    (copy / "results/tiny/values/memories/0.parquet").unlink()
    failed = snakemake(copy, ROOT / "configs/tiny.yaml")
    assert failed.returncode != 0
    assert "triggers.h5 is not a whole HDF5 file" in failed.stderr
    assert not (copy / "results/tiny/values/memories/0.parquet").exists()
