"""`python -m runcue.cli` is `queuectl`."""

from runcue.cli.main import queuectl

queuectl()
