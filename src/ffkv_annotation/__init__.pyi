"""The public names of ffkv_annotation, in the order of docs/api.md."""

# Not sorted:
# ruff: noqa: I001

from ffkv_annotation.step import make_sheets as make_sheets
from ffkv_annotation.step import compare_annotators as compare_annotators
from ffkv_annotation.records import read_records as read_records
from ffkv_annotation.settings import Sheets as Sheets
