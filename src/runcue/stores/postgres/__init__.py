"""A queue in PostgreSQL that processes on many machines share."""
