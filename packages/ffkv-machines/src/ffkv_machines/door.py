"""What machines add to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command

MACHINE = Command(
    "", "ffkv_machines.commands:machine", "Let a language model explain keys, and score its explanations."
)
