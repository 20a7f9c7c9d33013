"""What tests of the corpus share."""

import pytest


@pytest.fixture(autouse=True)
def offline(own_cache):
    """No test of the corpus asks the hub, or leaves anything in the person's own cache."""
