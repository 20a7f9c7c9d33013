"""Finished runs for agents: eight tools, and the pages of the documentation, by the Model Context Protocol.

`files` answers from the files of runs, `model` with their models: both call what notebooks call. `written` says what a tool takes, by
`tools.toml`, and makes a short JSON of its answer. `server` speaks the protocol, `commands` is `ffkv mcp`.
"""
