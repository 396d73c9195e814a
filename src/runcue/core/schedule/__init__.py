"""Decisions: what is accepted, what starts next, what becomes of it."""
