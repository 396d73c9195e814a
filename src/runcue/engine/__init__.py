"""The asyncio shell around the core: turns, attempts, callbacks, waiting callers."""
