"""`runcue top` and `queuectl top`: a queue live in the terminal, and keys to act on it (extra `tui`)."""
