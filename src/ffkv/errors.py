"""The one kind of error that is meant for the person who runs ffkv."""


class UserError(Exception):
    """What is wrong, where, and what to do about it, in one message.

    The command line prints the message alone and exits with 2. Everything else that is raised is a defect of ffkv.
    """
