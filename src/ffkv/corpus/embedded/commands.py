"""`ffkv train`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import output_option, seed_option, setting, threads_option
from ffkv.base.settings import Corpus, Embedded, section
from ffkv.base.terminal import say


@click.command()
@setting(Embedded, *Embedded.model_fields)
@setting(Corpus, "limit", "validation_share")
@seed_option
@threads_option
@output_option("Checkpoint folder to write.")
def train(limit: int, validation_share: float, seed: int, threads: int, output: Path, **options: Any) -> None:
    """Train the embedded model on the embedded corpus.

    The checkpoint folder can be loaded by transformers. It also contains training.csv (the loss by step) and
    training.json (the result in numbers).
    """
    settings = section(Embedded, **options)
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.corpus.embedded import step

    corpus = section(Corpus, limit=limit, validation_share=validation_share)
    summary = step.train(settings, corpus, seed, output).summary
    say(
        f"{summary['parameters']:,} parameters; validation perplexity "
        f"{summary['validation_perplexity']:.1f} (unigram {summary['unigram_perplexity']:.1f})"
    )
