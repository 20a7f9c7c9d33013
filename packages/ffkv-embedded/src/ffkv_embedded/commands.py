"""`ffkv train`."""

from pathlib import Path

import click

from ffkv.base.options import output_option, step_options
from ffkv.base.settings import Corpus, Embedded
from ffkv.base.terminal import say
from ffkv_embedded.door import RULES


@click.command()
@step_options(RULES["train"])
@output_option("Checkpoint folder to write.")
def train(embedded: Embedded, corpus: Corpus, seed: int, output: Path) -> None:
    """Train the embedded model, or train it further on another text.

    The checkpoint folder can be loaded by transformers. It also contains training.csv (the loss by step) and
    training.json (the result in numbers).
    """
    from ffkv_embedded import training

    summary = training.train(embedded, corpus, seed, output).summary
    say(
        f"{summary['parameters']:,} parameters; validation perplexity "
        f"{summary['validation_perplexity']:.1f} (unigram {summary['unigram_perplexity']:.1f})"
    )
