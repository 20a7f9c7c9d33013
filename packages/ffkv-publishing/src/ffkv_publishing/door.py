"""What publishing adds to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command

HEADING = "Share a finished run"
CRATE = Command(HEADING, "ffkv_publishing.commands:crate", "Pack a finished run for an archive, as an RO-Crate.")
PUBLISH = Command(HEADING, "ffkv_publishing.commands:publish", "Put finished reports into a folder for a static host.")
