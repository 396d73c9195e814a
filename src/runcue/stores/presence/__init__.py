"""The other processes on a queue: who is alive, and waking each other."""
