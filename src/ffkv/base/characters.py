"""Text below a character: a byte of an unfinished character is written as `<0xE6>`, as SentencePiece names bytes."""

import codecs
import re

BYTE = "<0x[89A-F][0-9A-F]>"  # a byte of a character that takes several
_WRITTEN = re.compile(BYTE.encode())
_CONTINUED = re.compile("(?:<0x[89AB][0-9A-F]>)+")  # bytes that go on with a character


def write_bytes(data: bytes) -> str:
    """Decodes UTF-8. Bytes that are no whole character become `<0xE6>`."""
    return data.decode("utf-8", "ffkv.bytes")


def read_bytes(text: str) -> bytes:
    """Returns the bytes of a text that `write_bytes` wrote."""
    return _WRITTEN.sub(lambda byte: bytes([int(byte[0][3:5], 16)]), text.encode())


def unfinished(data: bytes) -> bytes:
    """Returns the bytes at the end of a text that begin a character and do not end it."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(data)
    return decoder.getstate()[0]


def last_characters(text: str, last_token: str) -> int:
    """Counts the characters at the end of a prefix' text that its last token wrote or finished."""
    return len(last_token) if text.endswith(last_token) else 1 + len(_CONTINUED.sub("", last_token, count=1))


def _written(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("ffkv.bytes", _written)
