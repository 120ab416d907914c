"""`python -m fuse`: the command."""

from fuse.cli import main

main()
