"""Settings files of every wrong kind: a message with the file's name and the line, never a traceback."""

import contextlib
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from forks import with_forks
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import OFFLINE, ROOT, tries

from ffkv.base.errors import UserError
from ffkv.base.settings.yaml_file import check_command_line, read_settings
from ffkv.branches.settings import Settings
from ffkv.workflow.runs import resolve
from ffkv.workflow.settings_file import settings as settings_command

RUNS = b"runs: {a: {}}\n"
MERGES = b"".join(b"%c: &%c {<<: [%s]}\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 10)) for n in range(9))
NINES = b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9))
BROKEN = {
    "a tab": (b"runs:\n\ta: {}\n", r"line 2: found character '\\t' .* not by tabs"),
    "a bracket that is not closed": (b"runs: {a: {}\nseed: [1\n", "line 2: expected ',' or '}'"),
    "a key twice": (b"seed: 1\n" + RUNS + b"seed: 2\n", "line 3: the key 'seed' occurs twice, first in line 1"),
    "a key twice in a run": (b"runs:\n  a: {seed: 1,\n   seed: 1}\n", "line 3: the key 'seed' occurs twice"),
    "a key twice in JSON": (b'{"runs": {"a": {}},\n\t"seed": 1,\n\t"seed": 2}', "line 3: the key 'seed' .* first in line 2"),
    "a key twice in an object": (b'{"runs": {"a": {"seed": 1,\n"seed": 1}}}', "line 2: the key 'seed' occurs twice"),
    "a key twice, once escaped": (
        '{"runs": {"a": {}},\n"\U0001f600": 1, "\\ud83d\\ude00": 2}'.encode(),
        "the key '\U0001f600' occurs twice",
    ),
    "a list of merges": (b"a: &a {x: 1, y: 2}\n" + MERGES + RUNS, "line 2: `<<` takes one mapping"),
    "merges": (b"a: &a {x: 1}\nb: {<<: *a, <<: *a}\n" + RUNS, "line 2: the key '<<' occurs twice"),
    "a merge by another name": (b"a: &a {x: 1}\nb: {!!merge x: *a}\n" + RUNS, "line 2: `<<` takes one mapping"),
    "bytes": (bytes(range(256)), "line 2: is not UTF-8 text"),
    "Latin-1": (RUNS + b'report: {title: "caf\xe9"}\n', "line 2: is not UTF-8 text"),
    "UTF-16": (RUNS.decode().encode("utf-16"), "line 1: is not UTF-8 text"),
    "a NUL": (RUNS + b"seed: \0\n", r"line 2: the character '\\x00' is not allowed in YAML"),
    "nothing": (b"", "is empty: a settings file has keys at its top level"),
    "only a comment": (b"# runs\n", "is empty"),
    "a list": (b"- runs\n", "holds list, not a mapping"),
    "a word": (b"runs\n", "holds str, not a mapping"),
    "a list in JSON": (b'["runs"]', "holds list, not a mapping"),
    "code": (RUNS + b'x: !!python/object/apply:os.system ["touch pwned"]\n', "line 2: could not determine a constructor"),
    "an alias of itself": (b"keys: &k\n  x:\n    y: *k\n" + RUNS, "line 1: holds an alias of itself"),
    "an alias of nothing": (b"runs: {a: *x}\n", "line 1: found undefined alias 'x'"),
    "a key that is a list": (RUNS + b"? [a]\n: 1\n", "line 2: a key is a word, not a list"),
    "a number without end": (RUNS + b"seed: " + b"9" * 5000, "line 2: a number of 5,000 digits"),
    # Python 3.14 goes deeper.
    "brackets without end": (b"[" * 3000 + b"]" * 3000, "nested too deeply|holds list, not a mapping"),
    "deep sections": (b"{a: " * 60 + b"1" + b"}" * 60, "line 1: is nested too deeply"),
    "a date that is none": (RUNS + b"seed: 2020-99-99\n", "is not a settings file: month must be in 1..12"),
}  # fmt: skip


@pytest.mark.slow
def test_a_broken_file_is_named_with_its_line(subtests, tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.yaml"
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n", "--configfile", str(path), "--cores", "1"])
    for case, (content, message) in BROKEN.items():
        with subtests.test(case=case):
            path.write_bytes(content)
            with pytest.raises(UserError, match=f"^{path}.*{message}") as caught:
                read_settings(path)
            assert len(str(caught.value).splitlines()) == 1
            with pytest.raises(SystemExit, match="2"):
                check_command_line()
            assert str(caught.value) in capsys.readouterr().err


ODD = {
    "a date": (b"seed: 2020-01-01\n", "seed is datetime.date"),
    "no number": (b"composition: {mass: .nan}\n", "composition.mass is nan"),
    "no end": (b"composition: {mass: .inf}\n", "composition.mass is inf"),
    "a null section": (b"keys:\n", r"keys is None: must be a mapping of settings \(\{\} for none\)"),
    "a number as text": (b"seed: 0o17\n", "seed is '0o17': must be a whole number"),
    "a set": (b"keys: !!set {per_layer}\n", "keys is {'per_layer'}: must be a mapping"),
    "bytes": (b"report: {title: !!binary aGVsbG8=}\n", "report.title is b'hello': must be text"),
    "a billion parts": (b"a: &a [x,x,x,x,x,x,x,x,x]\n" + NINES + b"seed: *i\n", r"seed is \[\[\[\["),
    "yes and no": (b"corpus: {bos: no}\n", "corpus.bos is False: must be text. YAML reads yes, no, "),
    "keys that are no words": (b"1: 2\ntrue: 3\n2020-01-01: 4\n.nan: 5\n", "Unknown setting '1'"),
}


def test_odd_values_are_refused_by_key_and_value(subtests, tmp_path):
    for case, (content, message) in ODD.items():
        with subtests.test(case=case):
            (tmp_path / "mine.yaml").write_bytes(content + RUNS)
            with pytest.raises(UserError, match=message) as caught:
                resolve(read_settings(tmp_path / "mine.yaml"))
            assert len(str(caught.value)) < 6000


def test_one_mapping_may_be_merged(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"a: &a {seed: 1, keys: {}}\nruns: {b: {<<: *a, seed: 2}}\n")
    assert read_settings(tmp_path / "mine.yaml")["runs"] == {"b": {"seed": 2, "keys": {}}}


FILES = [ROOT / "config.yaml", *sorted((ROOT / "configs").glob("*.yaml"))]


def test_a_file_that_is_fine_is_what_yaml_says(subtests):
    for path in FILES:
        with subtests.test(path=path):
            assert read_settings(path) == yaml.safe_load(path.read_text())
            if "dictionaries/" in path.read_text():  # which `make dictionary` trains, or a person fetches
                continue
            (checked,) = CliRunner().invoke(settings_command, ["--check", str(path)]).output.splitlines()
            assert checked.startswith(f"{path} is valid, and the files of text and prompts that it names can be read.")


@st.composite
def damaged(draw) -> bytes:
    content = bytearray(FILES[-1].read_bytes())
    pieces = st.sampled_from(
        [b":", b"\t", b"[", b"}", b"&a ", b"*a", b"!!set ", b"\n", b"- ", b"'", b"#", b"\xff", b"~", b"? "]
    )
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        content[place : place + draw(st.integers(0, 9))] = draw(pieces | st.binary(max_size=6))
    return bytes(content)


@given(damaged() | st.binary(max_size=60))
@hypothesis_settings(max_examples=tries(200), suppress_health_check=list(HealthCheck))
def test_whatever_the_bytes_are_there_are_settings_or_a_user_error(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    try:
        assert all(isinstance(run, Settings) for run in resolve(read_settings(path)).values())
    except UserError as error:
        assert "Traceback" not in str(error)


@pytest.mark.parametrize(
    "arguments, files",
    [
        (["--configfile", "a"], ["a"]),
        (["--configfile=a", "target"], ["a"]),
        (["-n", "--configfiles", "a", "b", "--cores", "1"], ["a", "b"]),
        (["--configfile", "missing.yaml"], ["missing.yaml"]),
        (["target", "--cores", "1"], ["config.yaml"]),
    ],
)
def test_the_files_of_a_command_line(tmp_path, monkeypatch, arguments, files):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "target", "1", "config.yaml"):
        (tmp_path / name).write_bytes(RUNS)
    read = []
    monkeypatch.setattr("ffkv.base.settings.yaml_file.read_settings", read.append)
    monkeypatch.setattr(sys, "argv", ["snakemake", *arguments])
    check_command_line()
    assert read == files


@pytest.mark.parametrize(
    ("arguments", "plugin", "told"),
    [
        ("snakemake", False, True),
        ("snakemake -np", False, True),
        ("snakemake -np", True, False),
        ("snakemake/__main__.py --executor slurm-jobstep", False, False),
        ("pytest -n0", False, False),
    ],
)
def test_the_plugin_of_a_cluster_that_is_missing_is_told(tmp_path, monkeypatch, capsys, arguments, plugin, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", arguments.split())
    monkeypatch.setattr("ffkv.base.settings.yaml_file.find_spec", lambda name: plugin)
    check_command_line()
    with pytest.raises(SystemExit, match="2") if told else contextlib.nullcontext():
        check_command_line(slurm=True)
    assert ("snakemake-executor-plugin-slurm is not installed: `make slurm`" in capsys.readouterr().err) == told


@pytest.mark.workflow
@pytest.mark.parametrize("profile", ["default", "none"])
def test_snakemake_says_what_is_wrong_and_where(tmp_path, profile):
    """With the profile that comes along nearly anything is said; without it what Snakemake itself lets through."""
    path = tmp_path / "it's mine.yaml"
    path.write_bytes(BROKEN["a key twice" if profile == "none" else "an alias of itself"][0])
    command = ["snakemake", "-n", "--directory", tmp_path, "--cores", "1", "--configfile", path]
    command += ["--workflow-profile", "none"] if profile == "none" else []
    refused = subprocess.run(command, cwd=ROOT, env=with_forks(OFFLINE), capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0
    reason = "line 3: the key 'seed'" if profile == "none" else "line 1: holds an alias of itself"
    said = refused.stdout + refused.stderr  # a dry run speaks on the one, and on the other
    assert f"{path}, {reason}" in said
    assert "Traceback" not in said
    assert not (tmp_path / "results").exists()
