"""Functions in worker processes, each of which can be killed without touching another."""
