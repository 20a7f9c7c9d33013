"""`python -m ffkv`: the same as the `ffkv` command."""

from ffkv.cli import main

main()
