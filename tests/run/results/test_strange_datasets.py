"""HDF5 files that somebody made to look like those of a run: each is refused in one sentence, and none is read for ever."""

import json

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.stored import sum_path
from ffkv.run.results.check import check_run
from ffkv.run.results.text_search import shortest_prefix


def changed(path, change) -> None:
    """Changes a file as its maker would: the sum beside it goes, too."""
    with h5py.File(path, "r+") as file:
        change(file)
    sum_path(path).unlink(missing_ok=True)


def instead(name, make):
    """A change that puts something else in the place of a dataset."""

    def change(file):
        values = file[name][...]
        del file[name]
        make(file, name, values)

    return change


def virtual(source):
    def make(file, name, values):
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        layout[...] = h5py.VirtualSource(source, name, values.shape, values.dtype)
        file.create_virtual_dataset(name, layout)

    return make


def put(of):
    def make(file, name, values):
        file[name] = of(values)

    return make


def raw(file, name, values):
    file.create_dataset(name, values.shape, values.dtype, external=[("/etc/hostname", 0, values.nbytes)])


LINKS = {
    "a virtual dataset of its own file": virtual("."),
    "a virtual dataset of its own file, by its name": virtual("triggers.h5"),
    "a virtual dataset of a file above it": virtual("../other/triggers.h5"),
    "a virtual dataset of a file anywhere": virtual("/tmp/triggers.h5"),
    "a link to another file": lambda file, name, values: file.__setitem__(
        name, h5py.ExternalLink("values.h5", "value")
    ),
    "a link to itself": lambda file, name, values: file.__setitem__(name, h5py.SoftLink(name)),
    "bytes of a file of the system": raw,
}
FORMS = {
    "text": put(lambda values: "many"),
    "texts": put(lambda values: np.full(values.shape, b"x", "S1")),
    "references": lambda file, name, values: file.create_dataset(name, values.shape, h5py.ref_dtype),
    "a group": lambda file, name, values: file.create_group(name),
    "wider numbers": put(lambda values: values.astype("f8")),
    "another axis": put(lambda values: values[..., None]),
    "fewer rows": put(lambda values: values[1:]),
    "more columns": put(lambda values: np.repeat(values, 2, -1)),
    "one number": put(lambda values: values.reshape(-1)[0]),
}


def readers(folder):
    """What a report, an export and a page read of trigger examples, each alone."""
    run = ffkv.open(folder)
    return [
        lambda: run.memory("L0.0").triggers,
        lambda: run.memory("L0.0").similar("triggers"),
        lambda: run.memories(sort="maximum_coefficient"),
        lambda: ffkv.read_triggers(folder / "triggers.h5"),
    ]


def reason(folder, name) -> str:
    """What `ffkv check` says of a file, and of no other."""
    (found,) = [problem for problem in check_run(folder)[1] if problem.path == folder / name]
    return found.reason


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "negative/sentence") for case in LINKS), ("a virtual dataset of its own file", "coefficient")],
)
def test_a_file_that_leads_elsewhere_is_refused(folder, case, name):
    changed(folder / "triggers.h5", instead(name, LINKS[case]))
    for read in readers(folder):
        with pytest.raises(UserError, match=r"triggers\.h5 is not as ffkv writes it: it (reads|has a link)"):
            read()
    assert "is not as ffkv writes it" in reason(folder, "triggers.h5")


def test_a_group_that_has_a_second_name_beside_the_dimensions_is_looked_into(folder):
    def change(file):
        del file["negative/sentence"]
        file["dimension/again"] = file["negative"]
        raw(file, "negative/sentence", np.zeros(5, np.int32))

    changed(folder / "triggers.h5", change)
    for read in readers(folder):
        with pytest.raises(UserError, match=r"triggers\.h5 is not as ffkv writes it: it has a link"):
            read()


@pytest.mark.parametrize("case", FORMS)
def test_datasets_of_other_types_and_shapes_are_refused_where_they_are_read_and_named(folder, case):
    changed(folder / "triggers.h5", instead("coefficient", FORMS[case]))
    for read in (readers(folder)[0], readers(folder)[1], readers(folder)[3]):
        with pytest.raises(UserError, match=r"triggers\.h5 is not as ffkv writes it: its \w+ is "):
            read()
    assert "is not as ffkv writes it: its " in reason(folder, "triggers.h5")


# file, dataset, place, number
NUMBERS = {
    "a sentence behind the last": ("triggers.h5", "sentence", (0, 0), 4),
    "a sentence before the first": ("triggers.h5", "sentence", (0, 0), -2),
    "the largest sentence": ("triggers.h5", "sentence", (0, 0), 2**31 - 1),
    "a position behind the text": ("triggers.h5", "position", (0, 0), 2**31 - 1),
    "a position behind its sentence": ("triggers.h5", "position", (0, 0), 5),
    "a position before its sentence": ("triggers.h5", "position", (0, 0), -3),
    "a token that is none": ("triggers.h5", "next_token", (0, 0), 6),
    "a coefficient that is no number": ("triggers.h5", "coefficient", (0, 1), np.nan),
    "an infinite coefficient": ("triggers.h5", "coefficient", (0, 1), np.inf),
    "a document that is none": ("corpus/train.h5", "document", 1, 7),
    "a sentence that starts behind the text": ("corpus/train.h5", "sentence_offset", 2, 10**9),
    "sentences that go back": ("corpus/train.h5", "sentence_offset", 2, 1),
    "a text that starts behind all texts": ("corpus/train.h5", "text_offset", 1, 10**9),
    "a text before the first": ("corpus/train.h5", "text_offset", 1, -5),
    "a text that is no UTF-8": ("corpus/train.h5", "text", slice(0, 9), 255),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_that_lead_nowhere_are_refused_and_named(folder, case):
    file, name, place, number = NUMBERS[case]
    changed(folder / file, lambda opened: opened[name].__setitem__(place, number))
    run = ffkv.open(folder)
    with pytest.raises(UserError, match=r"(train|triggers)\.h5|longer prefixes"):
        _ = [run.memory(memory).triggers for memory in ("L0.0", "L1.0", "L1.1")]
    if "position" not in case and "UTF-8" not in case:
        assert f"is not as ffkv writes it: its {name} is " in reason(folder, file)


def test_check_names_a_dataset_that_is_missing(folder):
    changed(folder / "triggers.h5", lambda file: file.__delitem__("next_token"))
    assert "it has no next_token" in reason(folder, "triggers.h5")


VALUES = "values/by_memory/0.parquet"


def with_metadata(path, change) -> None:
    """Changes what a parquet file says of itself as JSON."""
    table = pq.read_table(path)
    about = {key.decode(): json.loads(value) for key, value in table.schema.metadata.items()}
    change(about)
    texts = {key: json.dumps(value) for key, value in about.items()}
    pq.write_table(table.replace_schema_metadata(texts), path)
    sum_path(path).unlink(missing_ok=True)


TABLES = {
    "attributes are a list": lambda about: about["pandas"].update(attributes=[1]),
    "the index is a number": lambda about: about["pandas"].update(index_columns=5),
    "columns are texts": lambda about: about["pandas"].update(columns=["a"]),
    "all is a list": lambda about: about.update(pandas=[]),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_says_strange_things_of_itself_is_refused_or_read(folder, case):
    with_metadata(folder / VALUES, TABLES[case])
    with pytest.raises(UserError, match=r"by_memory.*0\.parquet"):
        ffkv.open(folder).memories()
    assert reason(folder, VALUES)


COLUMNS = {
    "a column is missing": lambda table: table.drop(columns="top_token"),
    "text for numbers": lambda table: table.assign(top_token="x"),
    "no whole number": lambda table: table.assign(top_token=0.5),
    "below the lowest": lambda table: table.assign(triggers=-1),
    "numbers for truth values": lambda table: table.assign(agrees=0.5),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_table_with_other_columns_is_refused_where_it_is_read(folder, case):
    tables.write(COLUMNS[case](tables.read(folder / VALUES)), folder / VALUES)
    with pytest.raises(UserError, match=r"by_memory is not as ffkv writes it: it"):
        ffkv.open(folder).memories()
    assert "is not as ffkv writes it: it" in reason(folder, VALUES)


def test_numbers_in_the_place_of_texts_are_refused(folder):
    path = folder / "keys/patterns/0.parquet"
    tables.write(tables.read(path).assign(label=5), path)
    with pytest.raises(
        UserError, match=r"patterns is not as ffkv writes it: its column label has other values than texts"
    ):
        ffkv.open(folder).memories(pattern="x")
    assert "its column label has other values than texts" in reason(folder, "keys/patterns/0.parquet")


def test_a_table_with_a_column_twice_is_refused(folder):
    path = folder / "keys/activity.csv"
    table = tables.read(path)
    sum_path(path).unlink(missing_ok=True)
    path.write_text("\n".join(f"{line},{line.split(',')[0]}" for line in table.to_csv(index=False).splitlines()) + "\n")
    with pytest.raises(UserError, match=r"activity\.csv is not as ffkv writes it: it has a column twice"):
        ffkv.open(folder).table("activity")


ANATOMIES = {
    "no vocabulary": {"vocabulary": 0},
    "a negative width": {"width": -1},
    "text for a number": {"vocabulary": "6"},
    "more parameters than there can be": {"parameters": 10**30},
    "a file outside": {"gguf": "../../etc/passwd.gguf"},
    "no layers": {"layers": []},
    "another field": {"secret": 1},
}


@pytest.mark.parametrize("case", ANATOMIES)
def test_an_anatomy_that_cannot_be_is_refused(folder, case):
    path = folder / "model" / "anatomy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ANATOMIES[case]))
    with pytest.raises(UserError, match=rf"anatomy\.json cannot be read \({next(iter(ANATOMIES[case]))}: "):
        ffkv.open(folder)


def test_a_table_that_names_other_memories_is_refused(folder):
    path = folder / "keys/patterns/0.parquet"
    below = "has numbers below 0"
    other = "names memories that its model does not have"
    for column, number, reason in (
        ("layer", 5, other),
        ("layer", -1, below),
        ("memory", 3, other),
        ("memory", -1, below),
    ):
        frame = tables.read(path)
        tables.write(frame.assign(**{column: number}), path)
        with pytest.raises(UserError, match=reason):
            ffkv.open(folder).memories(pattern="x")
        tables.write(frame, path)


def test_a_search_of_texts_reads_only_what_is_as_described(folder):
    changed(folder / "corpus/train.h5", lambda file: file["text_offset"].__setitem__(1, -5))
    with pytest.raises(UserError, match=r"train\.h5"):
        shortest_prefix(ffkv.open(folder).files, "church")
