"""The error for mistakes that the user of ffkv can correct."""


class UserError(Exception):
    """One message that says what is wrong, where, and what to do.

    The command line prints only the message and exits with code 2. Every other exception is a defect of ffkv.

    Examples:
        >>> ffkv.open("results/nowhere")
        Traceback (most recent call last):
        ffkv.base.errors.UserError: results/nowhere is not a folder. Name the folder of a run, such as results/demo.
    """
