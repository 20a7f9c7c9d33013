"""Two passes over the corpus: trigger examples and statistics of every key, activations of sampled prefixes.

Triggers (train split): `batches` says in which order sentences are read, `triggers` runs them. `top_t` keeps the top t
of every key, as integers, `statistics` counts, and `triggers` makes `trigger_file` of both. On a GPU, one kernel
(`scan_kernel`) does what `top_t` and `statistics` do with a batch.

Sampled prefixes (validation split): `states` draws them, and keeps y, o and m of each (`last_token`), in `prefix_file`.

`resume` saves an unfinished shard, `merge` puts shards together. `step` has the functions on files, `commands` the
commands `ffkv triggers`, `merge-triggers`, `sampled-prefixes` and `merge-sampled-prefixes`.
"""
