"""The values runcue is made of, and how text becomes such values."""
