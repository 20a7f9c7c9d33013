"""The setting `model.max_memory`: sizes of memory by device."""

import click
import pytest
from click.testing import CliRunner

from ffkv.base.errors import UserError
from ffkv.base.options import command_line, setting
from ffkv.base.settings import Keys, Model, Settings, section
from ffkv.base.settings.section import memory_bytes
from ffkv.run.results.expected import expected_files


def test_sizes_have_units():
    sizes = {"20GiB": 20 * 2**30, "1.5GB": 1.5e9, "7": 7, "3 kb": 3000, "2TiB": 2**41}
    assert {size: memory_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    "given", [{"0": "much"}, {"gpu": "1GB"}, {"0": True}, ["0=1GB"], {"-1": "1GB"}, {"cpu": "1e3"}]
)
def test_what_is_no_memory_of_a_device_is_refused(given):
    with pytest.raises(UserError, match=r"max_memory is .*must"):
        section(Model, max_memory=given)


def test_a_mapping_goes_through_the_command_line():
    settings = Settings(model={"max_memory": {0: "20 GiB", "cpu": 5000}}).model_dump()
    words = command_line(settings, "model/max_memory")
    assert words == "--max-memory '0=20 GiB' --max-memory cpu=5000"

    @click.command()
    @setting(Model, "max_memory")
    def show(max_memory):
        click.echo(sorted(max_memory.items()))

    run = CliRunner()
    assert run.invoke(show, ["--max-memory", "0=20 GiB", "--max-memory", "cpu=5000"]).output == (
        "[('0', '20 GiB'), ('cpu', '5000')]\n"
    )
    assert run.invoke(show, []).output == "[]\n"
    assert run.invoke(show, ["--max-memory", "0"]).exit_code == 2


def test_precision_is_measured_unless_it_is_switched_off():
    low = Settings(model={"dtype": "bfloat16"})
    assert "keys/precision.csv" in expected_files(low)
    off = low.model_copy(update={"keys": Keys(precision=False)})
    assert "keys/precision.csv" not in expected_files(off)
    assert "keys/precision.csv" not in expected_files(Settings())
