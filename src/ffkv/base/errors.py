"""The error for mistakes that the user of ffkv can correct."""


class UserError(Exception):
    """One message that says what is wrong, where, and what to do.

    The command line prints only the message and exits with code 2. Every other exception is a defect of ffkv.
    """
