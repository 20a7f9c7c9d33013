"""What a step is given: the files that it reads, each opened and checked when the step first asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import h5py
import numpy as np
import pandas as pd

from ffkv.activations.prefix_file import KIND, PrefixLayer, read_end, read_layer
from ffkv.activations.trigger_file import Triggers, read_triggers
from ffkv.base.files import hdf5, tables
from ffkv.base.process.progress import progress
from ffkv.base.steps import Work
from ffkv.branches.values.projections import Projections, read_projections
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.values_file import Values, read_values

if TYPE_CHECKING:  # these need torch, which takes a second to import
    from ffkv.model.checkpoint.load import LoadedModel
    from ffkv.model.effects.rerun import Running
    from ffkv.model.head.head import Head


class Given:
    """The files of a step, and how it does its work. Only modules with steps use it; what they call in others gets what was read.

    Each attribute raises UserError if its file is missing or damaged, or belongs to another model, tokenizer, corpus or sample
    than the other files: files must have the hashes of `model`; `train` those of `triggers`; `validation` those of `prefixes`.

    Attributes:
        work: the device, the batches and the part: the layer group or the shard.
        name: the name of the behaviour; "" for other steps.
        files: the path of each file by its name in `Step.reads`; a list of them if the step reads those of all groups. A table that
            is in memory stands for its file, and so does another result of an earlier step.
    Examples:
        >>> with Given(Work("cpu"), model="results/tiny/model", prefixes="results/tiny/sampled_prefixes.h5") as given:
        ...     table = measure_refinement(given)
    """

    def __init__(self, work: Work = Work(), name: str = "", **files: Any) -> None:
        self.work, self.name, self.files = work, name, files
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes what is open."""
        self._opened.close()

    # The model

    @cached_property
    def anatomy(self) -> Anatomy:
        """How the model is built."""
        return read_anatomy(self.files["model"])

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The hashes of the model and its tokenizer; empty if the step does not read it."""
        return self.anatomy.identity if "model" in self.files else {}

    @cached_property
    def layers(self) -> range:
        """The layers of the group."""
        if "model" in self.files:
            return self.work.part.of(len(self.anatomy.layers))
        with hdf5.open(self.files["triggers"], "triggers") as file:
            return self.work.part.of(len(file["layer_offset"]) - 1)

    def each_layer(self, about: str) -> Iterator[int]:
        """Yields the layers of the group, and shows how many are done. `about`: what is done with them."""
        with progress(len(self.layers), "layers", about) as bar:
            for layer in self.layers:
                yield layer
                bar.update()

    @cached_property
    def token_texts(self) -> Sequence[str]:
        """The text of every token."""
        return read_vocabulary(self.files["model"])

    def head(self, kind: str = "head", device: str = "") -> "Head":
        """Loads the head. `kind`: as the setting `values.projection`. `device`: another one than that of the work."""
        from ffkv.model.head.head_file import load_head

        return load_head(self.files["model"], device or self.work.device, kind, self.work.trust_remote_code)

    def model(self, gradients: bool = False, **other: Any) -> "LoadedModel":
        """Loads the model, with its blocks. `gradients`: whether it is differentiated. `other`: attributes of another work, such as `device`."""
        from ffkv.model.checkpoint.load import load_for

        return load_for(self.files["model"], replace(self.work, **other), gradients)

    def running(self, whole: bool = False, gradients: bool = False) -> "AbstractContextManager[Running]":
        """Loads the model to change it while it runs, in float32, see `ffkv.model.effects.rerun.running`."""
        from ffkv.model.effects.rerun import running

        return running(self.files["model"], self.work, whole, gradients)

    def values_of(self, layers: range) -> Values:
        """Reads the values of some layers."""
        return read_values(self.files["values"], layers, self.identity)

    @cached_property
    def projections(self) -> Projections:
        """The projections of the values of the layer group, which must be those of its layers."""
        return read_projections(self.files["projections"], self.identity, self.layers)

    def top_token_texts(self, memories: pd.DataFrame) -> list[str]:
        """Returns the text of the top token of the value of each row's memory, from the projections of all groups."""
        places = zip(memories["layer"].tolist(), memories["memory"].tolist(), strict=True)
        return [self.token_texts[self._top_token[place]] for place in places]

    @cached_property
    def _top_token(self) -> Mapping[tuple[int, int], int]:
        read = [read_projections(path, self.identity) for path in self.files["projections"]]
        return {
            (layer, memory): token
            for each in read
            for layer, memory, token in zip(each.layer.tolist(), each.memory.tolist(), each.top.tolist())
        }

    # The train split, and what the first pass found there

    @cached_property
    def train_identity(self) -> Mapping[str, Any]:
        """The attributes of `triggers.h5`: the hashes of model, tokenizer and train split."""
        with hdf5.open(self.files["triggers"], "triggers", self.identity) as file:
            return dict(file.attrs)

    @cached_property
    def triggers(self) -> Triggers:
        """The trigger examples of all layers."""
        return read_triggers(self.files["triggers"], self.identity)

    def triggers_of(self, layer: int) -> Triggers:
        """Reads the trigger examples of one layer alone."""
        rows = slice(*self.anatomy.layer_offset[layer : layer + 2])
        return read_triggers(self.files["triggers"], self.identity, rows)

    @cached_property
    def train(self) -> Corpus:
        """The train split."""
        return read_corpus(self.files["train"], self.train_identity if "triggers" in self.files else self.identity)

    @cached_property
    def competing(self) -> CompetingPrefixes:
        """The prefixes of the train split that competed to be trigger examples."""
        settings = self.triggers.settings
        once = settings.shared_prefixes_compete == "once"
        return CompetingPrefixes(self.train, once, settings.include_empty_prefix)

    # The validation split, and the prefixes that were sampled from it

    @cached_property
    def _sampled(self) -> h5py.File:
        return self._opened.enter_context(hdf5.open(self.files["prefixes"], KIND, self.identity))

    @cached_property
    def sample_identity(self) -> Mapping[str, Any]:
        """The attributes of `sampled_prefixes.h5`: the hashes of model, tokenizer, validation split and sample."""
        return dict(self._sampled.attrs)

    def sampled(self, name: str) -> np.ndarray:
        """Reads "sentence", "position" or "next_token" of the sampled prefixes [prefix]."""
        with hdf5.reading(self.files["prefixes"]):
            return self._sampled[name][...]

    def states(self, layer: int, names: str) -> PrefixLayer:
        """Reads states of the sampled prefixes in one layer. `names`: some of "yrom"."""
        with hdf5.reading(self.files["prefixes"]):
            return read_layer(self._sampled, layer, names)

    @cached_property
    def end(self) -> np.ndarray:
        """What the head reads on the sampled prefixes [prefix, d], as of the layer `Anatomy.read_as`."""
        with hdf5.reading(self.files["prefixes"]):
            return read_end(self._sampled)

    @cached_property
    def validation(self) -> Corpus:
        """The validation split."""
        identity = self.sample_identity if "prefixes" in self.files else self.identity
        return read_corpus(self.files["validation"], identity)

    # What earlier steps wrote

    def table(
        self, name: str, belongs_to: Mapping[str, Any], key: Sequence[str] = (), layers: set[int] | None = None
    ) -> pd.DataFrame:
        """Returns a table that a step wrote: of all groups, shards and behaviours, if it reads those of all.

        Args:
            belongs_to: hashes that it must have, if it has any: `identity`, `train_identity` or `sample_identity`.
            key: columns that name a row. If some are named, each row must be there once, and each of `layers` once.
            layers: all layers of the model if None.
        """
        files = self.files[name]
        read = tables.read_all(files if isinstance(files, list | tuple) else [files], belongs_to)
        if key:
            expected = set(range(len(self.anatomy.layers))) if layers is None else layers
            tables.check_layers(read, [*key], expected, "--" + name.replace("_", "-"))
        return read
