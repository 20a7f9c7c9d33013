"""What reads files in the GGUF form, see `ffkv.model.checkpoint.readers.FileReader`."""

from ffkv.model.checkpoint.readers import FileReader
from ffkv_gguf.gguf_file import finish_model, finish_tokenizer, read_entries, read_once, unpacking_seconds

READER = FileReader(read_once, finish_model, read_entries, finish_tokenizer, unpacking_seconds)
