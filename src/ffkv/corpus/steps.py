"""The steps of the wing `corpus`."""

from ffkv.base.steps import Step

CORPUS = Step("ffkv.corpus.step:encode_corpus", settings=("corpus", "model/trust_remote_code"), imports="model")
COPY_CORPUS = Step("ffkv.corpus.step:copy_corpus")
STEPS = {"corpus": CORPUS, "copy_corpus": COPY_CORPUS}
