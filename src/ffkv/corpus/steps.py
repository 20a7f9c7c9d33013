"""The steps of the wing `corpus`."""

from ffkv.base.steps import Step

TRAIN = Step(
    "ffkv.corpus.embedded.step:train",
    settings=("embedded", "corpus/limit", "corpus/validation_share", "seed"),
    imports="model",
)
CORPUS = Step("ffkv.corpus.step:encode_corpus", settings=("corpus",), imports="model")
COPY_CORPUS = Step("ffkv.corpus.part:copy_corpus")
STEPS = {"train": TRAIN, "corpus": CORPUS, "copy_corpus": COPY_CORPUS}
