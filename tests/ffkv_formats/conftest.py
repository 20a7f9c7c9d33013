"""The runs and exports of the tests beside, `tests/run/export`, and the graphs of `tests/run/graph`."""

from tests.run.export.conftest import CHOSEN as CHOSEN
from tests.run.export.conftest import TOP as TOP
from tests.run.export.conftest import exported as exported
from tests.run.export.conftest import exported_run as exported_run
from tests.run.export.conftest import run as run
from tests.run.graph.conftest import chain as chain
from tests.run.graph.conftest import without_patterns as without_patterns
