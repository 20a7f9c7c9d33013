"""The detector on a few sentences: its triggers, its projections and their comparison."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ffkv.activations.batches import Batching
from ffkv.activations.trigger_file import Negative
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Triggers
from ffkv.branches.values.project import compare, project
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

SENTENCES = ["a b p", "a c p", "b d e a", "p c c p", "d e p", "p d f p"]
# Keys of layer 0 detect a, b, c, nothing and write b, c, c, nothing; of layer 1 d, d, e, nothing and write e, f, a, nothing.


@pytest.fixture
def worked(detector, loaded_detector, write_corpus):
    """Corpus, triggers, projections, ranks and the comparison of the detector on SENTENCES, and the files behind them."""
    corpus_file, values_file = write_corpus(SENTENCES, load_tokenizer(detector)), detector.parent / "values.h5"
    corpus = read_corpus(corpus_file)
    triggers = find_triggers(
        loaded_detector, corpus, Triggers(per_key=4, shared_prefixes_compete="per_sentence"), Batching()
    )
    values = read_values(values_file)
    projections, ranks = project(
        load_head(detector, "cpu"),
        values,
        3,
        triggers.next_token[triggers.layer_offset[values.layer] + values.memory, 0],
    )
    return SimpleNamespace(
        corpus=corpus,
        unigram=CompetingPrefixes(corpus, False).count_next_tokens(17),
        triggers=triggers,
        projections=projections,
        ranks=ranks,
        table=compare(projections, ranks, triggers),
        corpus_file=corpus_file,
        values_file=values_file,
    )


@pytest.fixture
def negative_triggers(worked):
    """The detector's triggers, and negative ones as if its first layer were negative on other prefixes."""
    places = {0: [(0, 1), (1, 1)], 1: [(4, 1)], 2: [], 3: [(3, 1)], 4: [(0, 2)]}  # row: (sentence, position) by rank
    shape = worked.triggers.coefficient.shape
    arrays = {"coefficient": np.zeros(shape, np.float32), "sentence": np.full(shape, -1, np.int32)}
    arrays |= {"position": np.zeros(shape, np.int32), "next_token": np.full(shape, -1, np.int32)}
    for row, prefixes in places.items():
        for rank, (sentence, position) in enumerate(prefixes):
            arrays["coefficient"][row, rank] = rank - 9
            arrays["sentence"][row, rank], arrays["position"][row, rank] = sentence, position
            arrays["next_token"][row, rank] = worked.corpus.ids(sentence)[position]
    count = np.array([len(places.get(row, [])) for row in range(shape[0])], np.int32)
    arrays["multiplicity"] = arrays["next_count"] = (arrays["sentence"] >= 0).astype(np.int32)
    gate, minimum = np.zeros(shape, np.int8), arrays["coefficient"][:, 0]
    negative = Negative(**arrays, gate=gate, count=count, fires=3 * count, minimum=minimum)
    return replace(worked.triggers, negative=negative)
