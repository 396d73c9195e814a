"""Questions about a queue: why work waits, when all of it will be done, which of it is listed."""
