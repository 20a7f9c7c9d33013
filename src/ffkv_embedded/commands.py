"""`ffkv train`."""

from pathlib import Path

import click

from ffkv.base.options import output_option, seed_option, takes, threads_option
from ffkv.base.process.runtime import torch_with
from ffkv.base.settings import Corpus, Embedded
from ffkv.base.terminal import say


@click.command()
@takes(Embedded)
@takes(Corpus, "limit", "validation_share")
@seed_option
@threads_option
@output_option("Checkpoint folder to write.")
def train(embedded: Embedded, corpus: Corpus, seed: int, threads: int, output: Path) -> None:
    """Train the embedded model, or train it further on another text.

    The checkpoint folder can be loaded by transformers. It also contains training.csv (the loss by step) and
    training.json (the result in numbers).
    """
    torch_with(threads)
    from ffkv_embedded import training

    summary = training.train(embedded, corpus, seed, output).summary
    say(
        f"{summary['parameters']:,} parameters; validation perplexity "
        f"{summary['validation_perplexity']:.1f} (unigram {summary['unigram_perplexity']:.1f})"
    )
