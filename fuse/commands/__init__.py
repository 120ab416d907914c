"""What each command of `fuse` does. A command imports what it needs when it runs."""
