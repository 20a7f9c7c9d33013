"""`ffkv corpus` and `ffkv copy-corpus`."""

from pathlib import Path

import click

from ffkv.base.options import COMMIT, CORPUS, MODEL, output_option, setting, takes
from ffkv.base.process.runtime import configure
from ffkv.base.settings import Corpus, Jobs, Model
from ffkv.base.terminal import say


@click.command()
@MODEL
@click.option("--split", type=click.Choice(["train", "validation"]), required=True, help="Split to write.")
@takes(Corpus, argument="settings")
@setting(Jobs, "corpus_processes")
@setting(Model, "trust_remote_code")
@COMMIT
@output_option("File to write, corpus/<split>.h5.")
def corpus(
    model_folder: Path,
    split: str,
    settings: Corpus,
    corpus_processes: int,
    trust_remote_code: bool,
    commit_file: Path | None,
    output: Path,
) -> None:
    """Encode the documents of a split as sentences of token ids."""
    import json

    configure(1)  # each process has one thread
    from ffkv.base.hub.commit import read_commit
    from ffkv.corpus.encode import COUNTS
    from ffkv.corpus.step import encode_corpus

    commit = read_commit(commit_file) if commit_file else None
    encoded = encode_corpus(model_folder, split, settings, output, corpus_processes, commit, trust_remote_code)
    counts = json.loads(encoded.attributes["counts"])
    say(encoded.attributes["beginning"])
    say("; ".join(f"{name.replace('_', ' ')}: {counts[name]:,}" for name in COUNTS))


@click.command()
@CORPUS
@output_option("File to write, corpus/<split>.h5 of the control.")
def copy_corpus(corpus_file: Path, output: Path) -> None:
    """Copy a split of a run for its control: a third of the train split, the validation split whole."""
    from ffkv.corpus.step import copy_corpus as copy_split

    say(f"{copy_split(corpus_file, output)} from {corpus_file}.")
