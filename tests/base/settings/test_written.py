"""Settings files that come along, and what is written from the settings: the schema, the pages and the default file."""

import json
import re

import jsonschema
import pytest
import yaml
from support import ROOT

from docs import write_settings
from ffkv.branches.settings import Settings
from ffkv.workflow import settings_file
from ffkv.workflow.runs import resolve
from tests.base.settings.test_settings import one, refused

FILES = [ROOT / "config.yaml", *sorted((ROOT / "configs").glob("*.yaml"))]


def test_every_settings_file_that_comes_along_is_valid(subtests):
    for path in FILES:
        with subtests.test(path=path):
            configuration = yaml.safe_load(path.read_text(encoding="utf-8"))
            resolve(configuration)
            jsonschema.validate(configuration, json.loads(write_settings.schema()))


def test_the_settings_of_the_recipes_are_valid():
    recipes = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", recipes, re.DOTALL)]
    assert len(blocks) >= 4
    for block in blocks:
        resolve(one() | block)  # a block without runs is a part of a file


def test_the_schema_refuses_what_settings_refuse():
    schema = json.loads(write_settings.schema())
    for configuration in (
        one(modle={}),
        one(keys={"minimum_prefixes": 0}),
        one(seed="x"),
        {"runs": {}},
        {"runs": {"../x": {}}},
    ):
        refused(configuration)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(configuration, schema)
    jsonschema.validate(one(corpus={"dataset": "files", "train": "a.txt"}), schema)


@pytest.mark.parametrize("path", write_settings.FILES)
def test_what_is_written_from_the_settings_is_up_to_date(path):
    assert (ROOT / path).read_text(encoding="utf-8") == write_settings.FILES[path](), f"{path} differs: run `make docs`"


def test_the_default_file_holds_every_setting_at_its_default():
    written = yaml.safe_load(settings_file.default())
    written["report"]["control"] = "none"
    assert resolve({**written, "runs": {"mine": {}}}) == {"mine": Settings(report={"control": "none"})}
    names = [name for field in Settings.model_fields.values() for name in getattr(field.annotation, "model_fields", {})]
    assert all(f"| `{name}` |" in write_settings.page() for name in names)
