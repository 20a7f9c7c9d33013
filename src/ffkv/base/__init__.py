"""What all wings stand on: settings, files, processes, the hub, statistics. It knows no model.

Rooms: `settings` (what can be set), `files` (whole files on disk), `system` (disks, memory, signals), `process` (how
a step runs, and how it ends), `hub` (repositories of the Hugging Face hub).

- `errors`: the one class of errors for users; `terminal`: text that can send a terminal no command; `characters`: text
  below a character.
- `lookup`: whether a file is there, or may not be looked up.
- `steps`: one description per step of the workflow. `options`: the command line from the settings. `dependencies`:
  which code the numbers of a step depend on.
- `packages`: files that come inside an installed Python package.
- `expressions`: regular expressions of users, in linear time and bounded memory.
- `parts`: shards of a corpus, groups of layers; `batching`: rows of tokens into batches; `streams`: random numbers by
  purpose.
- `intervals`, `multiple_tests`: statistics that several branches share.
"""
