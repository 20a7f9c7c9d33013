"""`ffkv settings`: all that is wrong with a settings file, and with the text and the prompts that it names."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ffkv.base.errors import UserError
from ffkv.workflow.settings_file import settings


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks settings as a file, in a folder with text and prompts; returns the lines that are printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A sentence.")
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.csv").write_text("title,body\na,b\n")
    (tmp_path / "rows.jsonl").write_text('{"body": "b"}\n' * 3)
    (tmp_path / "many.jsonl").write_text('{"body": "b"}\n' * 1001)
    (tmp_path / "late.jsonl").write_text('{"body": ""}\n' * 1000 + '{"body": "b"}\n')
    (tmp_path / "pairs.jsonl").write_text('{"clean": "a", "bad": "b", "yes": " c", "no": " d"}\n' * 2)
    (tmp_path / "good.jsonl").write_text('{"positive": "a"}\n{"negative": "b"}\n')
    (tmp_path / "bad.jsonl").write_text('{"clean_prefix": "a"}\n')

    def lines(*words, **shared):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"runs": {"mine": {}}, **shared}))
        done = CliRunner().invoke(settings, words or ["mine.yaml"], catch_exceptions=False, standalone_mode=False)
        return done.output.splitlines()

    return lines


def refused(check, **shared):
    with pytest.raises(UserError) as told:
        check(**shared)
    return str(told.value).splitlines()


def test_a_file_is_named_with_and_without_the_option(check):
    (told,) = check()
    assert told.startswith(
        "mine.yaml is valid, and the files of text and prompts that it names can be read. Its runs: mine,"
    )
    assert check("--check", "mine.yaml") == [told]
    words = {("mine.yaml", "--check", "mine.yaml"): "FILE is written twice", ("--check",): "requires an argument"}
    for given, message in words.items():
        assert message in CliRunner().invoke(settings, given).output


@pytest.mark.parametrize(
    ("corpus", "sentence"),
    [
        ({"train": "nowhere.txt"}, "No corpus file matches 'nowhere.txt'"),
        ({"train": "text.txt", "validation": "nowhere.txt"}, "No corpus file matches 'nowhere.txt'"),
        ({"train": "folder"}, "'folder' is a folder. Name its files, as in 'folder/*'; if it holds a data set"),
        ({"dataset": "text.txt"}, "corpus.dataset is the file 'text.txt': set it to files"),
        ({"dataset": "../nowhere"}, "corpus.dataset is '../nowhere'. There is no such folder"),
        ({"train": "rows.csv"}, "rows.csv has no field 'text'; it has 'title', 'body'. Set corpus.text_field."),
        ({"train": "rows.jsonl"}, "rows.jsonl has no field 'text'; it has 'body'. Set corpus.text_field."),
        ({"train": "many.jsonl"}, "many.jsonl has no field 'text'; it has 'body'."),
        ({"train": "rows.csv", "text_field": "body", "where": {"year": "1"}}, "rows.csv has no column 'year'"),
    ],
)
def test_text_that_is_not_there_is_told(check, corpus, sentence):
    heading, line = refused(check, corpus={"dataset": "files", **corpus})
    assert heading == "What the settings name cannot be read:" and line.startswith(f"  {sentence}")


def test_a_data_set_in_a_folder_or_on_the_hub_is_fine(check):
    Path("folder/rows.csv").write_text("text\nb\n")
    for name in ("folder", "someone/texts"):
        assert " is valid" in check(corpus={"dataset": name})[0]


def test_text_that_is_there_is_fine(check):
    for train, field in (("text.txt", "text"), ("rows.csv", "body"), ("[rm]*.jsonl", "body"), ("late.jsonl", "body")):
        assert " is valid" in check(corpus={"dataset": "files", "train": train, "text_field": field})[0]


def test_prompts_with_other_names_of_fields_are_fine(check):
    fields = {"clean_prefix": "clean", "patch_prefix": "bad", "clean_answer": "yes", "patch_answer": "no"}
    assert " is valid" in check(behaviours={"a": {"prompts": "pairs.jsonl", "fields": fields}})[0]
    assert "pairs.jsonl" in refused(check, behaviours={"a": {"prompts": "pairs.jsonl"}})[1]


def test_all_that_is_wrong_is_told_at_once_and_each_thing_once(check):
    """Of settings that are refused, of contradictions, of text and of prompts; also where runs share them."""
    behaviours = {"a": {"prompts": "nowhere.jsonl"}, "b": {"prompts": "bad.jsonl"}, "c": {"prompts": "good.jsonl"}}
    told = refused(
        check,
        corpus={"dataset": "files", "train": "nowhere.txt"},
        behaviours=behaviours,
        embedded={"heads": 7},
        runs={"one": {"keys": {"per_layer": 0}}, "two": {}},
    )
    beginnings = [
        "The settings are not valid:",
        "  runs.one: keys.per_layer is 0",
        "  runs.one: embedded.heads is 7: must divide",
        "  runs.two: embedded.heads is 7: must divide",
        "What the settings name cannot be read:",
        "  No corpus file matches 'nowhere.txt'",
        "  There is no file of prompts nowhere.jsonl",
        "  bad.jsonl, line 1",
    ]
    assert len(told) == len(beginnings)
    assert [line for line, begin in zip(told, beginnings, strict=True) if not line.startswith(begin)] == []


def test_a_corpus_without_files_is_told_once(check):
    (heading, line) = refused(check, corpus={"dataset": "files"})
    assert heading == "The settings are not valid:" and "corpus.train is missing" in line
