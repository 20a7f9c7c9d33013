"""What the explorer adds to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command

EXPLORE = Command("Ask a finished run", "ffkv_explorer.commands:explore", "Open finished runs in a browser.")
