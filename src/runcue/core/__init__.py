"""Decisions without input or output: pure functions and frozen values."""
