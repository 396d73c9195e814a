"""A queue in a SQLite file that several processes may share."""
