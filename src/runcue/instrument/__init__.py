"""Instruments: what a Cue does, as log lines, metrics and traces."""
