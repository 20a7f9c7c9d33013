"""The error for mistakes that the user of ffkv can correct, and the words of any error."""

from ffkv.base.terminal import plain


class UserError(Exception):
    """One message that says what is wrong, where, and what to do.

    The command line prints only the message and exits with code 2; a notebook shows only the message. Every other
    exception is a defect of ffkv.

    Examples:
        >>> ffkv.open("results/nowhere")
        Traceback (most recent call last):
        ffkv.base.errors.UserError: results/nowhere is not a folder. Name the folder of a run, such as results/demo.
    """

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {plain(str(self))}"]


def one_line(error: object, most: int = 300) -> str:
    """Returns the words of an error on one line, at most so many characters; the name of its class if it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__
