"""Real processes on one file, killed at random, and a checker that trusts only what was seen from outside."""
