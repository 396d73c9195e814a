"""What runcue needs of Windows. system.py says what each module has to have; runcue.host.posix is its twin."""
