"""Refuses tasks for a Dask cluster on Windows, where nobody has tried that, in one line."""

from __future__ import annotations

from runcue.errors import ConfigError

raise ConfigError('executor="dask" needs Linux or macOS; on Windows use executor="process_pool", or WSL.')
