"""What is wrong with a checkpoint, from what a library raised."""

from pathlib import Path

from ffkv.base.files.fault import causes, denied
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import tell_damage
from ffkv.base.hub.messages import explain
from ffkv.base.lookup import exists
from ffkv.base.system.memory import is_out_of_memory, out_of_memory


def explain_failure(error: Exception, commit: Commit) -> str:
    """Says what is wrong with a checkpoint, from what a library raised. Raises: see `words_of`."""
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which is not run. If you have read it and trust it, set model.trust_remote_code."
    if not commit.commit:
        return _cannot_be_looked_up(Path(commit.repository)) or cannot_be_opened(error) or words_of(error)
    return (
        tell_damage(commit)
        or cannot_be_opened(error)
        or explain(error, "model", commit.repository, commit.revision)
        or words_of(error)
    )


def _cannot_be_looked_up(folder: Path) -> str:
    """Says why a file of a folder cannot be looked up, else "". transformers takes such a file for one that is not there."""
    try:
        for file in folder.iterdir():
            file.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as broken:
        return f"{broken.filename}: {broken.strerror}."
    return ""


def cannot_be_opened(error: Exception) -> str:
    """Says which file is there and cannot be opened, else "". safetensors calls every such file missing, without the reason."""
    for each in causes(error):
        file = str(each).partition("No such file or directory: ")[2]
        if isinstance(each, FileNotFoundError) and each.errno is None and file and exists(file):
            return f"{file} is there, but it cannot be opened. Check the memory and the disks, then start the same command again."
    return ""


def words_of(error: Exception) -> str:
    """Returns the words of a library's exception, on one line, and those of the system if the machine denied something.

    Raises UserError if it says that the memory does not suffice: then no file is to blame.
    """
    if is_out_of_memory(error):
        raise out_of_memory(error) from error
    if "weights_only" in str(error):
        return "its weights are a pickle that is damaged or names code, and ffkv runs none. Save them as safetensors."
    text = " ".join(str(error).split())[:400]
    if isinstance(error, KeyError) or not text:  # says nothing by itself
        text = f"{type(error).__name__} {text}".strip()
    system = denied(error)
    return text if system in text else f"{text} ({system})"
