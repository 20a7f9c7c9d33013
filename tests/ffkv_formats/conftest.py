"""The runs and exports of the tests beside, `tests/run/export`."""

from tests.run.export.conftest import CHOSEN as CHOSEN
from tests.run.export.conftest import TOP as TOP
from tests.run.export.conftest import exported as exported
from tests.run.export.conftest import exported_run as exported_run
from tests.run.export.conftest import run as run
