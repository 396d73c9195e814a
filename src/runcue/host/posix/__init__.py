"""What runcue needs of Linux and macOS; system.py lists the modules, runcue.host.windows has the same."""
