"""Limits of services: rates, quantities, concurrency, circuits."""
