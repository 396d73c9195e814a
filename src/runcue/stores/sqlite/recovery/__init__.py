"""A new queue file made of what can be read of a damaged one."""
