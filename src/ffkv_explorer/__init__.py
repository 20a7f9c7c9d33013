"""`ffkv explore`: finished runs as pages in a browser.

`commands` starts it, `serve` listens on a port or a socket, `security` lets only the user in, `application` knows
which address shows what. `shelf` holds the open runs and what is kept in memory of each.

A page is a module: `page_run`, `page_memory` (one memory, two side by side, an expert, and pages as files), `page_search` (also lists and
notes), `page_trace`, `page_behaviours` (a file of prompts), `page_annotate`. They write with `pages`: templates, addresses,
bars, a histogram, the scale of colours.

It reads runs through `ffkv.run.results` and, for what needs the model, through `ffkv.run.trace`. torch and scipy are imported in
the background, by one thread at a time, and the model is loaded when a page asks for it. `shelf.Held` says what is kept in
memory. Files stay open, so a run that is made again shows its old numbers until the explorer is started again.
"""
