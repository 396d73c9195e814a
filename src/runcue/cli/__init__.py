"""The command lines `queuectl` and `runcue`: users of runcue's public names like any other program."""
