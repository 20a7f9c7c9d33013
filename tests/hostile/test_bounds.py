"""Memory, time and temporary disk stay bounded. Each bound is met by its worst case, in a process with limited memory."""

import bz2
import gzip
import json
import resource
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from support import random_checkpoint

from ffkv.base.files.journal import read_journal
from ffkv.base.settings import Corpus, Settings
from ffkv.corpus.sources import read_documents
from ffkv.run.report.page_tables import MAX_CELL_CHARACTERS, _text
from ffkv.run.results.text import LONGEST_TOKEN, token

pytestmark = pytest.mark.slow

GIGABYTE = 2**30


def limited(*arguments: str, data: int = 4 * GIGABYTE, file: int = -1, **options) -> subprocess.CompletedProcess:
    """`ffkv` in a process whose data, and each file that it writes, may take so many bytes.

    Libraries alone take some 1.2 GB of data.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))

    command = [sys.executable, "-m", "ffkv", *arguments]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, **options)


def limited_script(imports: str, data: int, script: str, *arguments: str) -> str:
    """What a script prints that may take so many bytes of data, its imports included, and must end well."""
    limit = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_DATA, ({data}, {data}))\n"
    command = [sys.executable, "-c", f"{imports}\n{limit}{script}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


EXPRESSIONS = [
    "(?R)", "((((a{500}){500}){500}){500}){500}", "(a{60000}){60000}", "(a+)+$", "(a|a)*b", "(a*)*b", "((a?){500}){500}",
    "(?:a?){900}a{90}c", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)c", r"[\p{L}\p{N}]{900}", r"(\pL{1,30}){1,30}", "a.{900}c", "(" * 250 + ")" * 250,
    "x*", "|" * 499, "".join(f"a{{{n}}}|" for n in range(990, 900, -1)), "(?i)" + "ſ" * 200, "[^a]{1000}", r"\C{1000}",
]  # fmt: skip


def test_no_expression_takes_memory_or_time():
    """Each one is compiled and searched for, or refused, in a process that may take 200 MB."""
    script = "text = b'ab' * 20_000\n"
    script += "for expression in sys.argv[1:]:\n"
    script += "    start = time.monotonic()\n"
    script += "    try: compile_expression(expression).search(text)\n"
    script += "    except ValueError: pass\n"
    script += "    assert time.monotonic() - start < 10, expression\n"
    limited_script(
        "import time; from ffkv.base.expressions import compile_expression", 200_000_000, script, *EXPRESSIONS
    )


READERS = {
    "json": "read_json(path)",
    "journal": "read_journal(path)",
    "settings": "read_settings(path)",
    "sums": "read_sums(path.with_name('x'))",
    "sheet": "list(_rows(path, KEY_COLUMNS))",
    "csv": "list(csv_texts(str(path), path.open(newline=''), Corpus(dataset='files', train=['x'], validation=['x'])))",
}
DEEP, HEADER = b"[" * 1_000_000, b"sheet,item,row,text\n"


@pytest.mark.parametrize(
    "reader, content",
    [
        ("json", DEEP),
        ("json", b"[" + b"{}," * 2**23),
        ("json", b"9" * 10_000),
        ("json", b'{"a": 1, "a": 2}'),
        ("json", None),
        ("journal", b"x" * (2**24 + 1)),
        ("journal", None),
        ("settings", DEEP),
        ("settings", b"- " * 2**20),
        ("settings", None),
        ("sums", None),
        ("sheet", None),
        ("sheet", b"a\n" * 2**24),
        ("sheet", HEADER[:-1] + b",a" * 2**23),
        ("sheet", HEADER + b"\n" * 2**25),
        ("sheet", HEADER + b'"' + b"a" * 2**25),
        ("csv", b"text\n" + b'"a\n",' * 2**24),
    ],
)
def test_what_fills_the_memory_is_refused(tmp_path, reader, content):
    """Each is read in a process that may take 1.2 GB, and ends in one sentence. None: a file without end."""
    path = tmp_path / ".x.sha256"
    if content is None:
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content)
    imports = "from pathlib import Path; from ffkv.apps.annotation.csv_sheets import KEY_COLUMNS, _rows\n"
    imports += "from ffkv.base.errors import UserError; from ffkv.base.files.bounded import read_json\n"
    imports += "from ffkv.base.files.checksums import read_sums; from ffkv.base.files.journal import read_journal\n"
    imports += "from ffkv.base.settings import Corpus; from ffkv.base.settings.yaml_file import read_settings\n"
    imports += "from ffkv.corpus.row_files import csv_texts"
    script = "path = Path(sys.argv[1])\n"
    script += f"try: found = {READERS[reader]}; print('read', len(found))\n"
    script += "except (UserError, ValueError) as error: print('refused', error)\n"
    said = limited_script(imports, 1_200_000_000, script, str(path))
    blank_rows = content == HEADER + b"\n" * 2**25
    assert said.startswith("read 0" if blank_rows else "refused"), said


def test_a_journal_goes_on_behind_a_line_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + b"[" * 100_000 + b'\n{"a": 1, "a": 2}\n\n \0\n{"a": 2}\n{"a')
    journal = read_journal(tmp_path / "a.jsonl")
    assert journal.entries == [(1, {"a": 1}), (6, {"a": 2})]
    assert journal.torn == [2, 3, 7]


def test_documents_without_text_cost_no_memory(byte_model, tmp_path):
    """A packed file of 29 kB can hold 30 million empty lines; 90 bytes per line would be 2.9 GB."""
    for name, empty in (("small", 10), ("large", 1_000_000)):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"two words\nand two more\n" + b"\n" * empty, 9))
        (tmp_path / f"{name}.gz").rename(tmp_path / f"{name}.txt.gz")
    script = "import resource, sys; from ffkv.cli import ffkv\n"
    script += "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    script += "for name in ('small', 'large'):\n"
    script += "    before = peak()\n"
    script += "    text = ['--dataset', 'files', '--train', f'{name}.txt.gz', '--validation', 'x', '--output', f'{name}.h5']\n"
    script += "    ffkv(['corpus', '--model', sys.argv[1], '--split', 'train', *text], standalone_mode=False)\n"
    script += "print('grown', peak() - before)"
    done = subprocess.run([sys.executable, "-c", script, str(byte_model)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "empty documents: 1,000,000" in done.stdout
    assert int(done.stdout.split("grown")[1]) < 30_000  # kB; 90 bytes per line would be 90,000


def endless(kind: str) -> bytes:
    """A dump that would fill the memory: a page, a tag or a tree without end, and very many marks or pages."""
    head, page = b"<mediawiki>", b"<page><title>A</title><ns>0</ns><revision><text>%s</text></revision></page>"
    large = 2**28
    return {
        "page": head + b"<page><title>A</title><revision><text>" + b"a\n" * (large // 2),
        "tag": head + b"<page a='" + b"a" * large,
        "comment": head + b"<!--" + b"a" * large,
        "elements": head + b"<page>" + b"<a/>" * (large // 4),
        "title": head + b"<page><title>" + b"a" * large,
        "marks": head + (page % (b"{{" * 2**22)) * 2 + (page % (b"[[a]] {{b}}\n" * 2**19)) * 2 + b"</mediawiki>",
        "pages": head + page.replace(b"<ns>0", b"<ns>1") % b"a" * 2**20 + b"</mediawiki>",
    }[kind]


@pytest.mark.parametrize("kind", ["page", "tag", "comment", "elements", "title", "marks", "pages"])
def test_a_dump_without_end_takes_no_memory(tmp_path, kind):
    """It is unpacked and read in a process that may take 1.2 GB; what has no end is refused, the rest is read."""
    (tmp_path / "a.xml.bz2").write_bytes(bz2.compress(endless(kind), 1))
    imports = "from ffkv.base.errors import UserError; from ffkv.base.settings import Corpus\n"
    imports += "from ffkv.corpus.text_files import texts"
    script = "try: print('read', sum(1 for _ in texts(sys.argv[1], 'dump', Corpus())))\n"
    script += "except UserError as error: print(error)\n"
    said = limited_script(imports, 1_200_000_000, script, str(tmp_path / "a.xml.bz2"))
    expected = {"marks": "read 4\n", "pages": f"read {2**20}\n"}
    assert said == expected[kind] if kind in expected else "it has a page of more than 16,777,216 bytes" in said


def test_a_bomb_that_is_called_parquet_is_refused_early(byte_model, tmp_path):
    """Nothing is unpacked into the temporary folder without bound. These files unpack to 200 MB, and 84 MB are allowed."""
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"PAR1" + bytes(200_000_000), 9))
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(bytes(200_000_000), 9))
    for name, message in {"a": "it unpacks to more than", "b": "not a parquet file that was compressed"}.items():
        text = ["--dataset", "files", "--train", str(tmp_path / f"{name}.parquet.gz"), "--validation", "x"]
        output = ["--output", str(tmp_path / "train.h5")]
        done = limited("corpus", "--model", str(byte_model), "--split", "train", *text, *output, file=80 * 2**20)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert not (tmp_path / "train.h5").exists()


def test_a_parquet_file_that_gzip_compressed_is_read(tmp_path):
    table = pa.table({"text": ["w1 w2", "w3"]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    corpus = Corpus(dataset="files", train=[str(tmp_path / "a.parquet.gz")], validation=["x"])
    assert [document.text for document in read_documents(corpus, "train")] == ["w1 w2", "w3"]


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
    assert len(_text("pattern", "x" * 100_000)) < 2 * MAX_CELL_CHARACTERS
    assert str(token("short")) == "<bdi>short</bdi>"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_config_of_absurdly_many_layers_is_refused_soon(tmp_path, kind):
    """To build such a model would take `inspect` 94 s, and `plan` longer."""
    folder = random_checkpoint(tmp_path / "checkpoint", kind)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"n_layer" if kind == "gpt2" else "num_hidden_layers": 20_000}))
    start = time.monotonic()
    done = limited("inspect", "--checkpoint", str(folder))
    assert done.returncode == 2
    assert "names 20,000 layers" in done.stderr
    assert time.monotonic() - start < 60  # seconds; it takes 5, nearly all of them imports
