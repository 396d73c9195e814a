"""What the stores in SQLite and in PostgreSQL have in common."""
