"""The step of the room `corpus`: encode a split."""

from collections import Counter
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.files.steady import unchanged
from ffkv.base.hub.commit import Commit, check_commit, resolve_dataset
from ffkv.base.process.progress import progress
from ffkv.base.settings import EMBEDDED
from ffkv.base.settings import Corpus as Settings
from ffkv.corpus.beginning import configured_bos, find_beginning, longest_sentence
from ffkv.corpus.chat import chat_renderer
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.encode import encode
from ffkv.corpus.sources import read_documents, source_files
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.config import read_config
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary


def encode_corpus(
    model: Path | str,
    split: str,
    settings: Settings,
    output: Path | str,
    processes: int = 1,
    commit: Commit | None = None,
) -> Corpus:
    """Reads the documents of a split, encodes their sentences as token ids, and writes `corpus/<split>.h5`.

    Args:
        model: folder of the model step, for its tokenizer and context.
        split: "train" or "validation".
        settings: where the text is, and how to split it.
        output: file to write.
        processes: number of processes that split and encode the documents. It changes nothing but the time.
        commit: the commit of a data set of the hub to read; None for the one that the hub names now.
    Returns:
        The corpus, read from the file.
    Raises:
        UserError: a source is missing or cannot be read; the split has fewer than 2 sentences of two tokens or more;
            the tokenizer has no BOS token, but `settings.bos` asks for one, or no chat template, but the corpus
            contains chats.
    Examples:
        >>> settings = ffkv.settings.Corpus(dataset="embedded", limit=2)
        >>> corpus = ffkv.encode_corpus("results/tiny/model", "train", settings, "train.h5")
        >>> len(corpus.texts) == len(corpus)  # sentences
        True
    """
    anatomy = read_anatomy(Path(model))
    tokenizer = load_tokenizer(Path(model), trust_remote_code=anatomy.trust_remote_code)
    render = chat_renderer(tokenizer, settings)
    configured = configured_bos(read_config(Path(model)))
    beginning = find_beginning(tokenizer, settings.bos, configured, render, anatomy.beginnings)
    bos, reason = beginning
    if max(bos, default=0) >= anatomy.vocabulary:
        raise UserError(
            f"The tokenizer of {anatomy.checkpoint} puts the id {max(bos)} in front of a text, but the model knows only"
            f" {anatomy.vocabulary} tokens. Set corpus.bos to 'never', or mend the tokenizer."
        )
    if settings.dataset not in (EMBEDDED, "files"):
        commit = check_commit(commit, settings) if commit else resolve_dataset(settings)
    left_out: Counter[str] = Counter()
    with unchanged(source_files(settings, split)), progress(settings.limit or None, "documents", split) as bar:
        encoded = encode(
            read_documents(settings, split, render, commit, left_out),
            tokenizer,
            longest_sentence(anatomy.context, settings.context, beginning),
            settings,
            bos,
            processes,
            bar,
        )
    encoded.counts.update(left_out)
    if len(encoded.ids) < 2:
        counted = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in encoded.counts.items() if count)
        raise UserError(
            f"The {split} split of {settings.dataset} has {len(encoded.ids)} sentences of two tokens or more, "
            f"and at least 2 are needed ({counted or 'it has no document'}). Check the corpus settings."
        )
    attributes = {
        "model": anatomy.checkpoint,
        "tokenizer_hash": anatomy.tokenizer_hash,
        "split": split,
        "beginning": reason,
        **({"dataset_revision": commit.revision, "dataset_commit": commit.commit} if commit and commit.commit else {}),
        "settings": settings.model_dump(),
    }
    write_corpus(
        Path(output), encoded, bos, settings.pretokenized, attributes, settings.language, read_vocabulary(Path(model))
    )
    return read_corpus(Path(output))
