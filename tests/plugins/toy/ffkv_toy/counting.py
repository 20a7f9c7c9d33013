"""A corpus."""

from collections.abc import Iterator

from ffkv.corpus.document import Document


def documents(every: int = 1) -> Iterator[Document]:
    """Yields twenty documents."""
    for number in range(0, 20, every):
        yield Document(f"document {number}", f"w{number} w1 w2. w3 w{number} w4.")
