"""`ffkv corpus`."""

from pathlib import Path

import click

from ffkv.base.files.atomic import copy
from ffkv.base.options import COMMIT, MODEL, READABLE, output_option, setting, takes
from ffkv.base.settings import Corpus, Settings
from ffkv.base.terminal import say


@click.command()
@MODEL
@click.option("--split", type=click.Choice(["train", "validation"]), required=True, help="Split to write.")
@takes(Corpus, argument="settings")
@setting(Settings, "corpus_processes")
@COMMIT
@click.option("--copy-of", type=READABLE, help="This split of a run that reads the same text with the same tokenizer.")
@output_option("File to write, corpus/<split>.h5.")
def corpus(
    model_folder: Path,
    split: str,
    settings: Corpus,
    corpus_processes: int,
    commit_file: Path | None,
    copy_of: Path | None,
    output: Path,
) -> None:
    """Encode the documents of a split as sentences of token ids, or copy what another run has encoded."""
    import json

    from ffkv.base.process.runtime import configure

    if copy_of:
        copy(copy_of, output)
        say(f"Copied from {copy_of}.")
        return

    configure(1)  # each process has one thread
    from ffkv.base.hub.commit import read_commit
    from ffkv.corpus.encode import COUNTS
    from ffkv.corpus.step import encode_corpus

    commit = read_commit(commit_file) if commit_file else None
    encoded = encode_corpus(model_folder, split, settings, output, corpus_processes, commit)
    counts = json.loads(encoded.attributes["counts"])
    say(encoded.attributes["beginning"])
    say("; ".join(f"{name.replace('_', ' ')}: {counts[name]:,}" for name in COUNTS))
