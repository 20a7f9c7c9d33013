"""The public names of ffkv, for type checkers, editors and `ffkv.__getattr__`, in the order of docs/api.md."""

# Not sorted:
# ruff: noqa: I001

# A finished run
from ffkv.run.results.run import open as open
from ffkv.run.results.run import Run as Run
from ffkv.run.results.memory import Memory as Memory
from ffkv.run.results.run_files import RunFiles as RunFiles
from ffkv.run.results.collect import collections as collections
from ffkv.run.results.collect import collect as collect
from ffkv.run.results.collect import note as note
from ffkv.run.trace.trace import trace as trace
from ffkv.run.trace.result import Trace as Trace
from ffkv.run.trace.trace import trace_all as trace_all
from ffkv.run.trace.coefficients import predict as predict
from ffkv.run.trace.coefficients import coefficients as coefficients
from ffkv.run.trace.coefficients import write_coefficients as write_coefficients
from ffkv.run.graph.of_prompt import graph as graph
from ffkv.run.graph.result import Graph as Graph
from ffkv.run.graph.result import behaviour_graph as behaviour_graph
from ffkv.run.ask import behaviour as behaviour
from ffkv.run.behaviour import AskedBehaviour as AskedBehaviour
from ffkv.run.ask import concepts as concepts
from ffkv.run.trace.generate import generate as generate
from ffkv.run.report.step import figure as figure
from ffkv.run.report.step import report as report
from ffkv.run.report.claims import verdicts as verdicts

# Steps, in the order of the workflow; `step` takes one of a branch
from ffkv_embedded.training import train as train
from ffkv.model.step import prove as prove
from ffkv.corpus.step import encode_corpus as encode_corpus
from ffkv.activations.step import find_triggers as find_triggers
from ffkv.activations.merge import merge_triggers as merge_triggers
from ffkv.activations.step import sample_prefixes as sample_prefixes
from ffkv.activations.merge import merge_sampled_prefixes as merge_sampled_prefixes
from ffkv.run.ask import step as step
from ffkv.run.report.step import write_report as write_report

# Files
from ffkv.corpus.corpus_file import read_corpus as read_corpus
from ffkv.activations.trigger_file import read_triggers as read_triggers
from ffkv.activations.trigger_file import write_triggers as write_triggers
from ffkv.model.values_file import read_values as read_values
from ffkv.model.checkpoint.load import load as load_model  # noqa: F401 (it has another name here)
from ffkv.model.head.head_file import load_head as load_head

# Types
from ffkv.base.steps import Part as Part
from ffkv.base.steps import WHOLE as WHOLE
from ffkv.base.steps import Work as Work
from ffkv.branches import settings as settings
from ffkv.base.errors import UserError as UserError

__version__: str
