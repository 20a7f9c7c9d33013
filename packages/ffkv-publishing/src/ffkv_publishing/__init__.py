"""What a run is for others: a crate, which archives read, and a site of reports.

`commands` has `ffkv crate` and `ffkv publish`. `crate` packs a finished run into a Workflow Run RO-Crate. `site` puts finished
reports, pages of memories and exports into a folder that a static host shows, without what names this machine.
"""
