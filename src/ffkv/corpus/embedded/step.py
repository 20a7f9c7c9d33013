"""The step of the room `embedded`: train the embedded model."""

import json
from pathlib import Path

from transformers import PreTrainedModel

from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.looks import save_pretrained
from ffkv.base.process.progress import progress
from ffkv.base.settings import Corpus, Embedded
from ffkv.corpus.embedded.training import Trained, train_model
from ffkv.corpus.embedded.tuning import read_start
from ffkv.corpus.sources import read_documents

STEPS = "steps"  # folder of the checkpoints that `embedded.keep_steps` asks for, a folder per step


def train(settings: Embedded, corpus: Corpus, seed: int, output: Path | str) -> Trained:
    """Trains the embedded model and its tokenizer, or trains it further on another text, and writes a checkpoint folder.

    Args:
        settings: sizes, number of steps, learning rate, the text, the model that the training goes on from, and the steps
            after which a checkpoint is kept.
        corpus: `limit` and `validation_share` are used.
        seed: seed of the first weights and of the batches.
        output: checkpoint folder to write. transformers can load it; it also contains `training.csv` (the loss by
            step) and `training.json` (the result in numbers). The folder `steps/<step>` in it is the checkpoint of a
            step.
    Returns:
        The model, its tokenizer, and the contents of `training.csv` and `training.json`.
    Raises:
        UserError: a split has no sentences; a file of the text cannot be read; the model to go on from cannot be read, is no
            embedded model or has other sizes; or see `files.atomic`.
    Examples:
        >>> small = ffkv.settings.Embedded(layers=1, width=32, heads=2, vocabulary=300, steps=2, batch_tokens=64)
        >>> trained = ffkv.train(small, ffkv.settings.Corpus(limit=4), seed=0, output="checkpoint")
        >>> trained.model.config.n_layer
        1
    """
    text = Corpus(limit=corpus.limit, validation_share=corpus.validation_share)
    if settings.text:
        text = text.model_copy(update={"dataset": "files", "train": settings.text})
    documents = {split: list(read_documents(text, split)) for split in ("train", "validation")}
    start = read_start(Path(settings.tuned_from), settings) if settings.tuned_from else None
    with atomic(output) as temporary:
        with progress(settings.steps * settings.batch_tokens, "tokens", "training") as bar:

            def after_step(step: int, tokens: int, model: PreTrainedModel) -> None:
                bar.update(tokens)
                if step in settings.keep_steps:
                    save_pretrained(temporary / STEPS / str(step), model)

            trained = train_model(documents["train"], documents["validation"], settings, seed, after_step, start)
            bar.total = bar.n  # few batches are full to the last token
        save_pretrained(temporary, trained.model)
        for folder in (temporary, *temporary.glob(f"{STEPS}/*")):
            save_pretrained(folder, trained.tokenizer)
        tables.write(trained.curve, temporary / "training.csv")
        (temporary / "training.json").write_text(json.dumps(trained.summary, indent=2) + "\n")
    return trained
