"""What tests of the corpus share."""

import pytest


@pytest.fixture(autouse=True)
def offline(own_cache):
    """No test of the corpus asks the hub, or leaves anything in the person's own cache."""


@pytest.fixture
def file(tmp_path):
    """Writes a file and returns its path."""

    def write(name: str, content: bytes | str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
