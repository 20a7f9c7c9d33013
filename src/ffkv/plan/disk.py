"""Bytes of the files of a run, from their datasets (docs/formats.md) and, for tables, from what rows have been seen to take."""

from ffkv.activations.prefix_file import READ_AT_ONCE
from ffkv.activations.trigger_file import HISTOGRAM_EDGES
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split

HDF5_FILE = 14_000  # names, units, dimensions and identities
CHUNK = 2**20  # bytes of a chunk
TOKEN_TEXT = 7  # mean bytes of a token's text
TOKENIZER_ENTRY = 65  # bytes of a token in tokenizer.json, its merge included
# Bytes a row of a table, compressed where it is parquet; and of an empty one.
ROW = {"patterns": 135, "removal": 15, "memories": 26, "composition": 17, "refinement": 12, "csv": 60}
TABLE = 6_000
PAGE, CARD = 600_000, 18_000  # the report with its figures, and one card of a key


def triggers_bytes(shape: Shape, per_key: int, sides: int) -> float:
    """`triggers.h5`: four numbers and a sign a trigger, counts and a histogram a memory."""
    side = [4 * per_key] * 4 + [per_key, 4, 8, 4]
    rows = side * sides + [8, 8 * (len(HISTOGRAM_EDGES) - 1)]
    return HDF5_FILE * (1 + sides) / 2 + sum(_stored(shape.all_memories, row) for row in rows)


def prefixes_bytes(shape: Shape, prefixes: float) -> float:
    """`prefixes.h5`: r, x, y, o and m in float32. Chunks of m are whole."""
    rows = min(READ_AT_ONCE, max(prefixes, 1))
    m = 4 * shape.all_memories * rows * -(-prefixes // rows)
    return HDF5_FILE + m + prefixes * (4 * 4 * shape.width * shape.layers + 4 * shape.layers + 12)


def memories_bytes(shape: Shape) -> float:
    """`values.h5`: the values and a bias a layer in float32."""
    rows = min(max(shape.memories), 4096)
    return HDF5_FILE + 4 * shape.width * (rows * -(-shape.all_memories // rows) + shape.layers)


def projections_bytes(shape: Shape, tokens: int, groups: int) -> float:
    """`values/projections/`: highest and lowest tokens with log-probabilities, six numbers a memory."""
    rows = [4 * tokens] * 4 + [4] * 5 + [1]
    return groups * HDF5_FILE + groups * sum(_stored(shape.all_memories / groups, row) for row in rows)


def corpus_bytes(split: Split, shape: Shape) -> float:
    """`corpus/<split>.h5`: two numbers a token, five a sentence, the text; 40 bytes a document for its name."""
    by_sentence = [8, 8, 4, 4]
    size = 2 * _stored(split.tokens, 4) + _stored(split.size, 1) + _stored(40 * split.documents, 1)
    return HDF5_FILE + size + sum(_stored(split.sentences, row) for row in by_sentence) + _stored(shape.vocabulary, 8)


def model_bytes(shape: Shape) -> float:
    """`model/`: the model without its blocks, the tokenizer, the text of every token."""
    return shape.outside * shape.itemsize + shape.vocabulary * (TOKENIZER_ENTRY + 8 + TOKEN_TEXT) + HDF5_FILE


def checkpoint_bytes(shape: Shape) -> float:
    """`checkpoint/`: weights in float32 and the tokenizer."""
    return 4 * shape.parameters + shape.vocabulary * TOKENIZER_ENTRY


def table_bytes(name: str, rows: float) -> float:
    """A table of so many rows."""
    return TABLE + ROW[name] * rows


def report_bytes(cards: int) -> float:
    """The page, with its figures once more as files."""
    return PAGE + CARD * cards


def _stored(rows: float, row: int) -> float:
    """Bytes of a dataset of so many rows of so many bytes: it grows by whole chunks of leading rows, see `ffkv.files.hdf5`."""
    chunk = max(1, min(rows, CHUNK // row))
    return row * chunk * -(-rows // chunk)
