"""Commands of the operating system, and what they print."""
