"""Memory, time and temporary disk stay bounded. Each bound is met by its worst case, in a process with limited memory."""

import bz2
import gzip
import json
import subprocess
import textwrap
import time

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import with_forks
from pydantic import ValidationError
from support import OFFLINE, edit_json, random_checkpoint

from ffkv.base.files.journal import read_journal
from ffkv.branches.settings import Corpus, Settings
from ffkv.corpus.sources import read_documents
from ffkv.run.report.page_tables import MAX_CELL_CHARACTERS, _cells
from ffkv.run.results.text import LONGEST_TOKEN, token

pytestmark = pytest.mark.slow

# Reads what cases are given, each in a fork of its own.
EACH = """
import json, os, resource, sys
{imports}
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
for number, case in enumerate(json.load(sys.stdin)):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    said = os.open(f"{{sys.argv[1]}}/{{number}}", os.O_CREAT | os.O_WRONLY)
    os.dup2(said, 1), os.dup2(said, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (used + {data}, used + {data}))
    resource.setrlimit(resource.RLIMIT_FSIZE, ({file}, {file}))
{script}
    sys.exit()
"""


def limited(
    folder, imports: str, script: str, cases: dict[str, object], data: int = 200_000_000, file: int = -1
) -> dict[str, str]:
    """What a script says of each `case`, by name, in a process whose data may grow by so many bytes beyond its libraries.

    file: the bytes that each file may have that it writes.
    """
    program = EACH.format(imports=imports, script=textwrap.indent(script, "    "), data=data, file=file)
    said = folder / "said"
    said.mkdir()
    command, environment = ["python-code", program, said], with_forks(OFFLINE)
    given = json.dumps([*cases.values()])
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (said / str(number)).read_text() for number, name in enumerate(cases)}


EXPRESSIONS = [
    "(?R)", "((((a{500}){500}){500}){500}){500}", "(a{60000}){60000}", "(a+)+$", "(a|a)*b", "(a*)*b", "((a?){500}){500}",
    "(?:a?){900}a{90}c", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)c", r"[\p{L}\p{N}]{900}", r"(\pL{1,30}){1,30}", "a.{900}c", "(" * 250 + ")" * 250,
    "x*", "|" * 499, "".join(f"a{{{n}}}|" for n in range(990, 900, -1)), "(?i)" + "ſ" * 200, "[^a]{1000}", r"\C{1000}",
]  # fmt: skip


def test_no_expression_takes_memory_or_time(tmp_path):
    """Each one is compiled and searched for, or refused."""
    script = "start = time.monotonic()\n"
    script += "try: compile_expression(case).search(b'ab' * 20_000)\n"
    script += "except ValueError: pass\n"
    script += "print('in time' if time.monotonic() - start < 10 else 'late')"
    imports = "import time; from ffkv.base.settings.section import compile_expression"
    found = limited(tmp_path, imports, script, {each: each for each in EXPRESSIONS})
    assert {each: said for each, said in found.items() if said != "in time\n"} == {}


READERS = {
    "json": "read_json(path)",
    "journal": "read_journal(path)",
    "settings": "read_settings(path)",
    "sums": "read_sums(path.with_name('x'))",
    "sheet": "list(_rows(path, KEY_COLUMNS))",
    "csv": "list(csv_documents(str(path), path.open(newline=''), Corpus(dataset='files', train=['x'], validation=['x'])))",
}
DEEP, HEADER = b"[" * 1_000_000, b"sheet,item,row,text\n"
FILLING = {  # its reader and its content; None: a file without end
    "nested lists": ("json", DEEP),
    "very many objects": ("json", b"[" + b"{}," * 2**23),
    "a number of very many digits": ("json", b"9" * 10_000),
    "a name twice": ("json", b'{"a": 1, "a": 2}'),
    "JSON without end": ("json", None),
    "a line of a journal": ("journal", b"x" * (2**24 + 1)),
    "a journal without end": ("journal", None),
    "settings of nested lists": ("settings", DEEP),
    "settings of very many lists": ("settings", b"- " * 2**20),
    "settings without end": ("settings", None),
    "sums without end": ("sums", None),
    "a sheet without end": ("sheet", None),
    "a sheet of other columns": ("sheet", b"a\n" * 2**24),
    "a sheet of very many columns": ("sheet", HEADER[:-1] + b",a" * 2**23),
    "blank rows": ("sheet", HEADER + b"\n" * 2**22),
    "a very long cell": ("sheet", HEADER + b'"' + b"a" * 2**25),
    "a row of very many cells": ("csv", b"text\n" + b'"a\n",' * 2**24),
}


def test_what_fills_the_memory_is_refused(tmp_path):
    """Each ends in one sentence; a naive reader of each takes more than the memory that it has."""
    cases = {}
    for name, (reader, content) in FILLING.items():
        path = tmp_path / name / ".x.sha256"
        path.parent.mkdir()
        path.symlink_to("/dev/zero") if content is None else path.write_bytes(content)
        cases[name] = [reader, str(path), 100_000_000 if name == "blank rows" else 1_050_000_000]  # each could be kept
    imports = "from pathlib import Path; from ffkv_annotation.sheets import KEY_COLUMNS, _rows\n"
    imports += "from ffkv.base.errors import UserError; from ffkv.base.lookup import read_json\n"
    imports += "from ffkv.base.files.stored import read_sums; from ffkv.base.files.journal import read_journal\n"
    imports += "from ffkv.base.settings import Corpus; from ffkv.base.settings.yaml_file import read_settings\n"
    imports += "from ffkv.corpus.rows import csv_documents"
    readers = ", ".join(f"{name!r}: lambda: {call}" for name, call in READERS.items())
    script = "path, most = Path(case[1]), used + case[2]\n"
    script += "resource.setrlimit(resource.RLIMIT_DATA, (most, most))\n"
    script += f"try: print('read', len({{{readers}}}[case[0]]()))\n"
    script += "except (UserError, ValueError) as error: print('refused', error)\n"
    found = limited(tmp_path, imports, script, cases, data=1_050_000_000)
    assert found.pop("blank rows") == "read 0\n"
    assert {name: said for name, said in found.items() if not said.startswith("refused")} == {}


def test_a_journal_goes_on_behind_a_line_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + b"[" * 100_000 + b'\n{"a": 1, "a": 2}\n\n \0\n{"a": 2}\n{"a')
    journal = read_journal(tmp_path / "a.jsonl")
    assert journal.entries == [(1, {"a": 1}), (6, {"a": 2})]
    assert journal.torn == [2, 3, 7]


def test_documents_without_text_cost_no_memory(byte_model, tmp_path):
    """A packed file of 29 kB can hold 30 million empty lines; 90 bytes per line would be 2.9 GB."""
    for name, empty in (("small", 10), ("large", 500_000)):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"two words\nand two more\n" + b"\n" * empty, 9))
        (tmp_path / f"{name}.gz").rename(tmp_path / f"{name}.txt.gz")
    script = "import resource, sys; from ffkv.cli import ffkv\n"
    script += "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    script += "for name in ('small', 'large'):\n"
    script += "    before = peak()\n"
    script += "    text = ['--dataset', 'files', '--train', f'{name}.txt.gz', '--validation', 'x', '--output', f'{name}.h5']\n"
    script += "    ffkv(['corpus', '--model', sys.argv[1], '--split', 'train', *text], standalone_mode=False)\n"
    script += "print('grown', peak() - before)"
    command, environment = ["python-code", "-c", script, byte_model], with_forks(OFFLINE)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "empty documents: 500,000" in done.stdout
    assert int(done.stdout.split("grown")[1]) < 30_000  # kB; 90 bytes per line would be 45,000


def endless() -> dict[str, bytes]:
    """Packed dumps that would fill the memory: a page, a tag or a tree without end, and very many marks or pages."""
    head, page = b"<mediawiki>", b"<page><title>A</title><ns>0</ns><revision><text>%s</text></revision></page>"

    def repeated(begin: bytes, part: bytes, times: int = 128) -> bytes:
        return bz2.compress(head + begin) + bz2.compress(part * (2**20 // len(part))) * times

    marks = (page % (b"{{" * 2**21)) + (page % (b"[[a]] {{b}}\n" * 2**18)) + b"</mediawiki>"
    pages = page.replace(b"<ns>0", b"<ns>1") % b"a" * 2**12
    return {
        "page": repeated(b"<page><title>A</title><revision><text>", b"a\n"),
        "tag": repeated(b"<page a='", b"a"),
        "comment": repeated(b"<!--", b"a"),
        "elements": repeated(b"<page>", b"<a/>"),
        "title": repeated(b"<page><title>", b"a"),
        "marks": bz2.compress(head + marks, 1),
        "pages": bz2.compress(head) + bz2.compress(pages) * 2**6 + bz2.compress(b"</mediawiki>"),
    }


def test_a_dump_without_end_takes_no_memory(tmp_path):
    """What has no end is refused, the rest is read: pages of 130 MB, were they kept."""
    cases = {}
    for kind, content in endless().items():
        (tmp_path / f"{kind}.xml.bz2").write_bytes(content)
        cases[kind] = str(tmp_path / f"{kind}.xml.bz2")
    imports = "from ffkv.base.errors import UserError; from ffkv.base.settings import Corpus\n"
    imports += "from ffkv.corpus.sources import documents_of"
    script = "try: print('read', sum(1 for _ in documents_of(case, 'dump', Corpus())))\n"
    script += "except UserError as error: print(error)\n"
    found = limited(tmp_path, imports, script, cases, data=100_000_000)
    assert (found.pop("marks"), found.pop("pages")) == ("read 2\n", f"read {2**18}\n")
    refusal = "it has a page of more than 16,777,216 bytes"
    assert {kind: said for kind, said in found.items() if refusal not in said} == {}


# Calls `ffkv` with the words of the case.
LIBRARIES = "from ffkv.cli import main; from ffkv.workflow.jobs import import_libraries; import_libraries()"
COMMAND = """
sys.argv = ["ffkv", *case]
try: main()
except SystemExit as ended: print("exit code", ended.code)
"""


def test_a_bomb_that_is_called_parquet_is_refused_early(byte_model, tmp_path):
    """Nothing is unpacked into the temporary folder without bound. These files unpack to 200 MB, and 84 MB are allowed."""
    messages = {"a": "it unpacks to more than", "b": "not a parquet file that was compressed"}
    cases = {}
    for name, start in (("a", b"PAR1"), ("b", b"")):
        (tmp_path / f"{name}.parquet.gz").write_bytes(gzip.compress(start + bytes(200_000_000), 9))
        text = ["--dataset", "files", "--train", str(tmp_path / f"{name}.parquet.gz"), "--validation", "x"]
        output = ["--output", str(tmp_path / f"{name}.h5")]
        cases[name] = ["corpus", "--model", str(byte_model), "--split", "train", *text, *output]
    for name, said in limited(tmp_path, LIBRARIES, COMMAND, cases, data=2**30, file=80 * 2**20).items():
        assert messages[name] in said and said.endswith("exit code 2\n"), said
        assert not (tmp_path / f"{name}.h5").exists()


def test_a_column_with_a_dot_beside_a_column_of_structures_is_read(tmp_path):
    pq.write_table(pa.table({"a": [{"b": "inner"}], "a.b": ["outer"]}), tmp_path / "a.parquet")
    corpus = Corpus(dataset="files", train=[str(tmp_path / "a.parquet")], validation=["x"], text_field="a.b")
    assert [document.text for document in read_documents(corpus, "train")] == ["outer"]


@pytest.mark.parametrize(
    ("section", "name"),
    [("report", "cards"), ("report", "card_triggers"), ("values", "bins"), ("values", "predictive"), ("values", "top_tokens"),
     ("refinement", "changes"), ("keys", "background_prefixes"), ("embedded", "width"), ("embedded", "vocabulary")],
)  # fmt: skip
def test_limits_of_settings_are_values_that_work(section, name):
    """A billion would end in a MemoryError, after everything else had run."""
    with pytest.raises(ValidationError, match="less than or equal to"):
        Settings.model_validate({section: {name: 10**9}}, strict=False)


def test_a_long_token_shows_its_beginning():
    """Else one token makes a page of 57 MB."""
    assert len(token("x" * 100_000)) < 2 * LONGEST_TOKEN
    assert len(_cells("pattern", pd.Series(["x" * 100_000]))[0]) < 2 * MAX_CELL_CHARACTERS
    assert str(token("short")) == "<bdi>short</bdi>"


def test_a_config_of_absurdly_many_layers_is_refused_soon(tmp_path):
    """To build such a model would take `inspect` 94 s, and `plan` longer."""
    cases = {}
    for kind, name in (("gpt2", "n_layer"), ("llama", "num_hidden_layers")):
        path = random_checkpoint(tmp_path / kind, kind) / "config.json"
        edit_json(path, **{name: 20_000})
        cases[kind] = ["inspect", "--checkpoint", str(path.parent)]
    start = time.monotonic()
    for said in limited(tmp_path, LIBRARIES, COMMAND, cases, data=2**30).values():
        assert "names 20,000 layers" in said and said.endswith("exit code 2\n"), said
    assert time.monotonic() - start < 60  # seconds; it takes 1
