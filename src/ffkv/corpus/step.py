"""The steps of the room `corpus`: encode a split, and copy a part of it for a control.

`find_beginning` finds what the model reads in front of every sentence.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import copy
from ffkv.base.hub.commit import Commit, check_commit, resolve_dataset
from ffkv.base.lookup import unchanged
from ffkv.base.process.progress import progress
from ffkv.base.settings import Corpus as Settings
from ffkv.base.settings.section import third
from ffkv.corpus.chat import Render, chat_renderer, render_one
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus, write_part
from ffkv.corpus.encode import Encoded, encode
from ffkv.corpus.sources import read_documents, source_files
from ffkv.model.anatomy import read_anatomy_to_run
from ffkv.model.checkpoint.config import read_config
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST = 300  # sentences of the train split of a control; a text that has no more is copied whole
TOGETHER = 10  # sentences in a row


def encode_corpus(
    model: Path | str,
    split: str,
    settings: Settings,
    output: Path | str,
    processes: int = 1,
    commit: Commit | None = None,
    trust_remote_code: bool = False,
) -> Corpus:
    """Reads the documents of a split, encodes their sentences as token ids, and writes `corpus/<split>.h5`.

    Args:
        model: folder of the model step, for its tokenizer and context.
        split: "train" or "validation".
        settings: where the text is, and how to split it.
        output: file to write.
        processes: number of processes that split and encode the documents. It changes nothing but the time.
        commit: the commit of a data set of the hub to read; None for the one that the hub names now.
        trust_remote_code: whether the tokenizer's own code may run, if it needs it.
    Returns:
        The corpus, read from the file.
    Raises:
        UserError: a source is missing or cannot be read; the split has fewer than 2 sentences of two tokens or more; the tokenizer
            has no BOS token, but `settings.bos` asks for one, or no chat template, but the corpus contains chats.
    Examples:
        >>> settings = ffkv.settings.Corpus(dataset="embedded", limit=2)
        >>> corpus = ffkv.encode_corpus("results/tiny/model", "train", settings, "train.h5")
        >>> len(corpus.texts) == len(corpus)  # sentences
        True
    """
    anatomy = read_anatomy_to_run(Path(model), trust_remote_code)
    tokenizer = load_tokenizer(Path(model), trust_remote_code=anatomy.trust_remote_code)
    render = chat_renderer(tokenizer, settings)
    configured = configured_bos(read_config(Path(model)))
    beginning = find_beginning(tokenizer, settings.bos, configured, render, anatomy.beginnings)
    if max(beginning.ids, default=0) >= anatomy.vocabulary:
        raise UserError(
            f"The tokenizer of {anatomy.checkpoint} puts the id {max(beginning.ids)} in front of a text, but the model knows only"
            f" {anatomy.vocabulary} tokens. Set corpus.bos to 'never', or mend the tokenizer."
        )
    if settings.on_hub:
        commit = check_commit(commit, settings) if commit else resolve_dataset(settings)
    left_out: Counter[str] = Counter()
    with unchanged(source_files(settings, split)), progress(settings.limit or None, "documents", split) as bar:
        documents = read_documents(settings, split, render, commit, left_out)
        longest = longest_sentence(anatomy.context, settings.context, beginning)
        encoded = encode(documents, tokenizer, longest, settings, beginning.ids, processes, bar)
    encoded.counts.update(left_out)
    _check_enough(encoded, split, settings)
    attributes = {
        "model": anatomy.checkpoint,
        "tokenizer_hash": anatomy.tokenizer_hash,
        "split": split,
        "beginning": beginning.reason,
        **({"dataset_revision": commit.revision, "dataset_commit": commit.commit} if commit and commit.commit else {}),
        "settings": settings.model_dump(exclude={"title"}),  # which a report may change
    }
    vocabulary = read_vocabulary(Path(model))
    write_corpus(Path(output), encoded, beginning.ids, settings.pretokenized, attributes, settings.language, vocabulary)
    return read_corpus(Path(output))


def _check_enough(encoded: Encoded, split: str, settings: Settings) -> None:
    """Refuses a split with fewer than two sentences."""
    if len(encoded.ids) < 2:
        counted = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in encoded.counts.items() if count)
        raise UserError(
            f"The {split} split of {settings.dataset} has {len(encoded.ids)} sentences of two tokens or more, "
            f"and at least 2 are needed ({counted or 'it has no document'}). Check the corpus settings."
        )


def copy_corpus(corpus: Path | str, output: Path | str) -> Corpus:
    """Copies a split of a run for its control: a third of the train split; the validation split whole.

    The pass over the text is most of what a control takes, and grows with the text. A third gives the same numbers up to
    sampling, but fewer patterns (docs/interventions.md). It is stretches of sentences, because the topics of patterns are
    found in passages of a document, and from the whole text, because its documents may be in any order. Only sampled
    prefixes of the validation split are read, so that its size costs nothing.

    Args:
        corpus: the file `corpus/<split>.h5` of the run.
        output: file to write.
    Returns:
        The copy, read from the file.
    Raises:
        UserError: the file is missing or damaged, or the copy cannot be written.
    """
    whole = read_corpus(corpus)
    sentences = choose_sentences(len(whole))
    if whole.attributes["split"] == "validation" or len(sentences) == len(whole):
        copy(corpus, output)
    else:
        write_part(Path(output), whole, sentences)
    return read_corpus(output)


def choose_sentences(count: int) -> np.ndarray:
    """Returns the numbers of a third of `count` sentences: stretches of ten, at equal distances."""
    stretches, kept = -(-count // TOGETHER), -(-third(count, LEAST) // TOGETHER)
    first = np.arange(kept) * stretches // kept * TOGETHER
    sentences = (first[:, None] + np.arange(TOGETHER)).flatten()
    return sentences[sentences < count]


class Beginning(NamedTuple):
    """What the model reads in front of every sentence.

    Without a first token of its own a sentence begins with a word, and many models use the first position as a resting
    place of their attention: its states are outliers, whatever word is there.
    """

    ids: list[int]  # the token ids; none for nothing
    reason: str  # one sentence for log and report


def find_beginning(
    tokenizer: "PreTrainedTokenizerBase",
    bos: str,
    configured: int | None = None,
    render: Render | None = None,
    losses: Mapping[str, float] | None = None,
) -> Beginning:
    """Finds the ids that the model reads in front of every sentence.

    Args:
        tokenizer: of the model.
        bos: the setting `corpus.bos`. "auto": what the tokenizer puts there itself; if it puts nothing there, the token
            with the lowest of the `losses`; without any, its BOS token; if it has none, the token that separates
            documents. In front of chats only what their template writes, which writes all special tokens that the model
            expects. "always": its BOS token. "never": nothing. Else a token, by its name.
        configured: the BOS token that the model's config names. Models without BOS name the token there that separates
            their documents. It counts only if the tokenizer has it as a special token.
        render: turns a chat into text, see `chat_renderer`; None if the corpus contains text.
        losses: of the model behind each candidate, by its name, see `ffkv.model.discover.probe_texts`.
    Raises:
        UserError: `bos` is "always", and the tokenizer has no BOS token; or it names no token of the tokenizer; or it is
            "auto", and the ids of a text change when the tokenizer adds special tokens.
    """
    if bos == "never":
        return Beginning([], "Nothing precedes a sentence, as corpus.bos says.")
    if bos == "always" and tokenizer.bos_token_id is None:
        raise UserError("corpus.bos is 'always', but the tokenizer has no BOS token: use 'auto' or 'never'.")
    if bos != "auto":
        name, vocabulary = str(tokenizer.bos_token) if bos == "always" else bos, tokenizer.get_vocab()
        if name not in vocabulary:
            special = ", ".join(map(str, tokenizer.all_special_tokens)) or "none"
            raise UserError(f"corpus.bos is '{bos}', which the tokenizer does not have. Its special tokens: {special}.")
        return Beginning([vocabulary[name]], f"{name} precedes every sentence, as corpus.bos says.")
    found = _automatic_beginning(tokenizer, configured, losses if render is None else None)
    if render is None:
        return found
    ids = tokenizer(render_one(render), add_special_tokens=False)["input_ids"]
    if found.ids and ids[: len(found.ids)] == found.ids:
        names = " ".join(map(str, tokenizer.convert_ids_to_tokens(found.ids)))
        return Beginning(found.ids, f"{names} precedes every sentence, once: the chat template writes it.")
    return Beginning([], "Nothing precedes a sentence but what the chat template writes.")


def _automatic_beginning(
    tokenizer: "PreTrainedTokenizerBase", configured: int | None, losses: Mapping[str, float] | None
) -> Beginning:
    """Returns what "auto" puts in front of every text."""
    if ids := _ids_in_front(tokenizer):
        names = " ".join(map(str, tokenizer.convert_ids_to_tokens(ids)))
        return Beginning(ids, f"{names} precedes every sentence: the tokenizer puts it there.")
    if losses:
        best = min(losses, key=lambda name: losses[name])  # the first of equal ones
        shown = ", ".join(f"{name} {loss:g}" for name, loss in losses.items())
        return Beginning(
            [tokenizer.get_vocab()[best]],
            f"{best} precedes every sentence: of the tokens that may, it gives the lowest mean loss on the passages of the"
            f" proof ({shown} nats per token). corpus.bos can name another one.",
        )
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    if tokenizer.bos_token_id is not None:
        chosen, what = tokenizer.bos_token_id, "the BOS token"
    elif configured in special:
        chosen, what = configured, "the BOS token of the config, which separates documents"
    elif tokenizer.eos_token_id is not None:
        chosen, what = tokenizer.eos_token_id, "the end-of-text token, which separates documents"
    else:
        return Beginning([], "Nothing precedes a sentence: the tokenizer has no token for it.")
    name = tokenizer.convert_ids_to_tokens(chosen)
    return Beginning(
        [chosen],
        f"{name} precedes every sentence: it is {what}. The tokenizer does not put it there itself; corpus.bos 'never'"
        " leaves it out.",
    )


def longest_sentence(context: int, bound: int, beginning: Beginning) -> int:
    """Maximum number of tokens of a sentence, without its beginning, if the model reads `context` tokens at a time.

    `bound`: the setting `corpus.context`. Raises UserError if fewer than two tokens are left.
    """
    most = min(context, bound or context)
    if most - len(beginning.ids) < 2:
        whose = "corpus.context" if bound and bound <= context else "the context of the model"
        raise UserError(
            f"{whose} is {most}, and a sentence of two tokens with the {len(beginning.ids)} in front of it has"
            f" {2 + len(beginning.ids)}. Set corpus.context to more, or corpus.bos to 'never'."
        )
    return most - len(beginning.ids)


def configured_bos(config: dict[str, Any]) -> int | None:
    """Returns the BOS token that a config.json names; None if it names none."""
    bos = (config.get("text_config") or config).get("bos_token_id")
    return bos if isinstance(bos, int) else None


def _ids_in_front(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Returns the ids that the tokenizer itself puts in front of a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return special[:start]
    raise UserError("The tokenizer changes a text when it adds special tokens: set corpus.bos to 'always' or 'never'.")
