"""The live work and everything that hangs on it."""
