"""What reads checkpoints of fairseq, see `ffkv.model.checkpoint.readers`: their folder, and their dictionary as a tokenizer.

Each line of the dictionary, `dict.txt`, is `word count`; the tokenizer splits on blanks. Nothing here needs torch: what takes
long to import is imported when it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ffkv.base.errors import UserError
from ffkv.model.checkpoint.readers import FAIRSEQ_CLASS, FAIRSEQ_FILES, Reader, is_fairseq

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ffkv.base.settings import Model

MODEL_FILE, DICTIONARY_FILE = FAIRSEQ_FILES
REMEDY = "Take the dictionary that fairseq wrote with the model."
# Ids 0 to 3. Texts begin with </s>, never with <s>.
BOS, PAD, EOS, UNKNOWN = SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def read_dictionary(folder: Path) -> list[str]:
    """Reads the word of every id: the four special ones, then one word per line.

    Raises UserError if there is no dictionary, it is not UTF-8, a line is not `word count`, or a word occurs twice.
    """
    path = Path(folder) / DICTIONARY_FILE
    try:
        # Not splitlines: a word may hold what Unicode calls a line end.
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"There is no {path}: a fairseq checkpoint is a folder with model.pt and dict.txt.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    seen = dict.fromkeys(SPECIAL, "one of fairseq's own")  # each word, and where it is
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
        word, _, count = line.rstrip().rpartition(" ")
        if not word or not count.isascii() or not count.isdigit():
            raise UserError(f"{path}, line {number}: {line[:80]!r} is not a word, a blank and a count. {REMEDY}")
        if word in seen:
            raise UserError(f"{path}, line {number}: the word {word!r} occurs twice ({seen[word]}). {REMEDY}")
        seen[word] = f"first in line {number}"
    return list(seen)


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """Makes a fast tokenizer of a dictionary: blanks separate words, unknown words are `<unk>`, `</s>` comes first.

    Special tokens are words like others: blanks separate them, and they split no word that contains them. Raises: see
    `read_dictionary`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(read_dictionary(folder))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(f"{EOS} $A", None, [(EOS, ids[EOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=EOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        pad_token=PAD,
        split_special_tokens=True,
    )


def load_model(settings: "Model", with_weights: bool = True) -> "PreTrainedModel":
    """Loads the model of a checkpoint. Arguments and errors: see `ffkv_fairseq.checkpoint.load_model`."""
    from ffkv_fairseq import checkpoint

    return checkpoint.load_model(settings, with_weights)


def load_class() -> type:
    """Returns the class of the model."""
    from ffkv_fairseq.modeling import FairseqForCausalLM

    return FairseqForCausalLM


READER = Reader(
    files="model.pt and dict.txt (fairseq)",
    reads=is_fairseq,
    load_model=load_model,
    load_tokenizer=load_tokenizer,
    classes={FAIRSEQ_CLASS: load_class},
)
