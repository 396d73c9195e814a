"""Listeners on the bus: logging, and later metrics and traces."""
