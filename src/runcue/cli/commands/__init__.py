"""One module for each verb; the tables of verbs in main.py name the module, and the function where it is another.

A verb that both programs have is written once, for a `Place`, with a click command for each: `command` is queuectl's.
"""
