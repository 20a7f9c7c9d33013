"""`ffkv train`."""

from pathlib import Path

import click

from ffkv.options import WRITABLE, seed_option, setting, threads_option
from ffkv.settings import Corpus, Embedded, section


@click.command()
@setting(Embedded, *Embedded.model_fields)
@setting(Corpus, "limit", "validation_share")
@seed_option
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The checkpoint folder to write.")
def train(limit: int, validation_share: float, seed: int, threads: int, output: Path, **values) -> None:
    """Train the embedded model on the embedded corpus.

    Writes a checkpoint folder that transformers loads, and in it training.csv (the loss by step) and training.json
    (what was reached).
    """
    from ffkv.embedded import training
    from ffkv.errors import UserError
    from ffkv.process.progress import progress
    from ffkv.process.runtime import torch_with

    settings = section(Embedded, **values)
    if settings.width % settings.heads:
        raise UserError(f"embedded.heads is {settings.heads}: must divide embedded.width, {settings.width}")
    torch_with(threads)
    corpus = section(Corpus, limit=limit, validation_share=validation_share)
    with progress(settings.steps * settings.batch_tokens, "tokens", "training") as bar:
        trained = training.train(settings, corpus, seed, bar.update)
        bar.total = bar.n  # batches are not full to the last token
    training.save(trained, output)
    click.echo(
        f"{trained.summary['parameters']:,} parameters; validation perplexity "
        f"{trained.summary['validation_perplexity']:.1f} (unigram {trained.summary['unigram_perplexity']:.1f})"
    )
