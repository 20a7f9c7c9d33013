"""The client library `huggingface_hub`, made ready: it never waits without end, and leaves the words to ffkv."""

import functools
from typing import Any


@functools.cache
def prepare_client() -> None:
    """Gives every request a limit of time, because some functions of the library set none; and stills its log.

    A program that uses ffkv as a library and has set a time limit of its own keeps it.
    """
    import httpx2
    from huggingface_hub import constants, get_session, set_client_factory
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # each try that failed would be a line
    usual = get_session()
    if usual.timeout != httpx2.Timeout(None):
        return

    class Client(httpx2.Client):
        def build_request(self, *arguments: Any, **options: Any) -> httpx2.Request:
            if options.get("timeout") is None:
                options["timeout"] = constants.HF_HUB_DOWNLOAD_TIMEOUT
            return super().build_request(*arguments, **options)

    limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
    hooks = usual.event_hooks
    set_client_factory(lambda: Client(event_hooks=hooks, follow_redirects=True, timeout=limit))
