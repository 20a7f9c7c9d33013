"""`ffkv corpus`."""

from pathlib import Path

import click

from ffkv.options import WRITABLE, setting, threads_option
from ffkv.settings import Corpus, section


@click.command()
@click.option(
    "--model",
    "model_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The model stage's folder: its tokenizer is used.",
)
@click.option("--split", type=click.Choice(["train", "validation"]), required=True, help="Which split to write.")
@setting(Corpus, *Corpus.model_fields)
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The file to write, corpus/<split>.h5.")
def corpus(model_folder: Path, split: str, threads: int, output: Path, **values) -> None:
    """Turn the documents of a split into sentences of token ids."""
    from ffkv.corpus.corpus_file import write_corpus
    from ffkv.corpus.encode import bos_ids, encode
    from ffkv.corpus.sources import read
    from ffkv.errors import UserError
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.checkpoint.read import load_tokenizer

    settings = section(Corpus, **values)
    anatomy = read_anatomy(model_folder)
    tokenizer = load_tokenizer(model_folder, trust_remote_code=anatomy.trust_remote_code)
    bos = bos_ids(tokenizer, settings.bos)
    encoded = encode(
        read(settings, split),
        tokenizer,
        anatomy.context - len(bos),
        settings.splitter,
        settings.pretokenized,
        settings.long_sentences,
        settings.deduplicate,
    )
    click.echo("; ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in encoded.counts.items()))
    if len(encoded.ids) < 2:
        raise UserError(
            f"The {split} split of {settings.dataset} has {len(encoded.ids)} sentences of two tokens or more, and at least 2 are needed ({dict(encoded.counts)}). Check the corpus settings."
        )
    identities = {
        "model": anatomy.checkpoint,
        "tokenizer_hash": anatomy.tokenizer_hash,
        "split": split,
        "settings": settings.model_dump(),
    }
    write_corpus(output, encoded, bos, anatomy.vocabulary, settings.pretokenized, identities)
