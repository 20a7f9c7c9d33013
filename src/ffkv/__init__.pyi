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
from ffkv.run.trace.step import trace as trace
from ffkv.run.trace.result import Trace as Trace
from ffkv.run.trace.step import trace_all as trace_all
from ffkv.run.trace.predict import predict as predict
from ffkv.run.trace.coefficients import coefficients as coefficients
from ffkv.run.trace.coefficients import write_coefficients as write_coefficients
from ffkv.run.graph.step import graph as graph
from ffkv.run.graph.result import Graph as Graph
from ffkv.run.graph.of_behaviour import behaviour_graph as behaviour_graph
from ffkv.run.trace.behaviour import behaviour as behaviour
from ffkv.run.trace.generate import generate as generate
from ffkv.run.report.notebook import figure as figure
from ffkv.run.report.notebook import report as report
from ffkv.run.report.claims import verdicts as verdicts
from ffkv.apps.export.circuitsvis import circuitsvis as circuitsvis

# Steps, in the order of the workflow
from ffkv.corpus.embedded.step import train as train
from ffkv.model.step import prove as prove
from ffkv.corpus.step import encode_corpus as encode_corpus
from ffkv.activations.step import find_triggers as find_triggers
from ffkv.activations.merge import merge_triggers as merge_triggers
from ffkv.activations.step import sample_prefixes as sample_prefixes
from ffkv.activations.merge import merge_sampled_prefixes as merge_sampled_prefixes
from ffkv.branches.keys.step import find_patterns as find_patterns
from ffkv.branches.keys.step import remove_tokens as remove_tokens
from ffkv.branches.keys.step import measure_precision as measure_precision
from ffkv.branches.keys.step import summarize_keys as summarize_keys
from ffkv.branches.values.step import project_values as project_values
from ffkv.branches.values.step import summarize_values as summarize_values
from ffkv.branches.composition.step import measure_composition as measure_composition
from ffkv.branches.composition.step import summarize_composition as summarize_composition
from ffkv.branches.refinement.step import measure_refinement as measure_refinement
from ffkv.branches.refinement.step import summarize_refinement as summarize_refinement
from ffkv.branches.translation.step import read_states as read_states
from ffkv.branches.translation.step import fit_maps as fit_maps
from ffkv.branches.translation.step import measure_translation as measure_translation
from ffkv.branches.translation.step import summarize_translation as summarize_translation
from ffkv.branches.intervention.step import measure_interventions as measure_interventions
from ffkv.branches.intervention.step import summarize_interventions as summarize_interventions
from ffkv.branches.roles.step import measure_roles as measure_roles
from ffkv.apps.annotation.step import make_sheets as make_sheets
from ffkv.apps.annotation.step import compare_annotators as compare_annotators
from ffkv.run.report.step import write_report as write_report
from ffkv.run.comparison.step import compare_runs as compare_runs

# Files
from ffkv.corpus.corpus_file import read_corpus as read_corpus
from ffkv.activations.trigger_file import read_triggers as read_triggers
from ffkv.activations.trigger_file import write_triggers as write_triggers
from ffkv.model.values_file import read_values as read_values
from ffkv.model.checkpoint.load import load as load_model  # noqa: F401 (it has another name here)
from ffkv.model.head.head_file import load_head as load_head

from ffkv.apps.annotation.records import read_records as read_records

# Types
from ffkv.apps.annotation.settings import Sheets as Sheets
from ffkv.base.parts import Part as Part
from ffkv.base.parts import WHOLE as WHOLE
from ffkv.base.steps import Work as Work
from ffkv.base import settings as settings
from ffkv.base.errors import UserError as UserError

__version__: str
