"""What went wrong with the hub, in one sentence for the person who has to mend it."""

import os

from ffkv.base.errors import one_line
from ffkv.base.fault import causes

NAMES = {"model": "model", "dataset": "data set"}
ASK = "log in with `hf auth login` or set HF_TOKEN"


def is_offline() -> bool:
    """Tells whether the user forbade to ask the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def endpoint() -> str:
    """Returns the address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def explain(error: BaseException, kind: str, repository: str, revision: str) -> str:
    """Says what is wrong and what to do, from an error of `huggingface_hub` or of a library above it, and its causes.

    Returns one or two sentences; "" if neither the hub nor the way to it is behind the error.
    """
    for cause in causes(error):
        if message := _explain(cause, kind, repository, revision):
            return message
    return ""


def advise_download(kind: str, repository: str, revision: str) -> str:
    """Says how to fetch a repository before HF_HUB_OFFLINE is set."""
    kind = "--repo-type dataset " if kind == "dataset" else ""
    return f"Fetch it first, with `hf download {kind}{repository} --revision {revision}`."


def refused(error: BaseException) -> bool:
    """Tells whether the hub answered and refused, rather than being out of reach or out of order."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and status < 500


def _explain(error: BaseException, kind: str, repository: str, revision: str) -> str:
    from huggingface_hub import errors, get_token

    what = NAMES[kind]
    page = f"{endpoint()}/{'datasets/' if kind == 'dataset' else ''}{repository}"
    # `datasets` raises an error of its own, which does not lead back to the first one.
    gated_dataset = type(error).__name__ == "DatasetNotFoundError" and "gated" in str(error)
    if isinstance(error, errors.GatedRepoError) or gated_dataset:
        return f"it is gated. Ask for access on its page, {page}, then {ASK} of an account that has access."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no {what} of this name, or it is private. Check the name; if it is private, {ASK}."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision!r}.{_revisions(kind, repository)}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"a file that belongs to it is not there: {error.response.url.path if error.response else error}."
    if isinstance(error, errors.HFValidationError):
        return f"{repository!r} is neither a local folder nor a name that the hub can have, such as someone/something."
    if isinstance(error, errors.HfHubHTTPError) and (response := getattr(error, "response", None)) is not None:
        status = response.status_code
        if status == 401 and get_token():
            return (
                f"the hub refuses access (401). The token is wrong or has expired: {ASK} of an account that has access."
            )
        if status in (401, 403):
            return f"the hub refuses access ({status}). {ASK[0].upper()}{ASK[1:]} of an account that has access."
        if status == 429:
            return (
                "the hub refuses more requests for now (429). Wait some minutes, then start again: what was fetched is"
                f" kept. More requests are allowed if you {ASK}."
            )
        if status >= 500:
            return f"the hub is out of order ({status}). Start again later: what was fetched is kept."
        return f"the hub answered with status {status}. Look at its page, and start again if you can see it there."
    # Offline first: the library wraps the refusal to go online in errors of its own.
    if is_offline() and isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        advice = advise_download(kind, repository, revision)
        return f"HF_HUB_OFFLINE is set, and not all of it was fetched before. {advice}"
    if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests"):
        return f"the hub at {endpoint()} cannot be reached ({one_line(error)}). Check the network, then start again."
    # An answer lacks what each answer of a hub has: JSON in UTF-8, or headers of its own.
    no_json = type(error).__name__ == "JSONDecodeError" and "column 1 (char 0)" in str(error)
    if no_json or isinstance(error, UnicodeDecodeError | errors.FileMetadataError):
        return (
            f"what answers at {endpoint()} is not the hub, but perhaps the login page of a network. Check the network,"
            " then start again."
        )
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return (
            "a file arrived with another size than the hub says, so it was not kept. The network or the server changed it."
            " Check the network, then start again."
        )
    return ""


def _revisions(kind: str, repository: str) -> str:
    """Returns the branches and tags that there are, as a sentence; "" if the hub does not tell."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(repository, repo_type=kind)
    except Exception:  # the sentence before says what is wrong
        return ""
    names = [ref.name for ref in [*refs.branches, *refs.tags]]
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return f" It has {', '.join(names[:20])}{more}." if names else ""
