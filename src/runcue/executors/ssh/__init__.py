"""Commands on other hosts over SSH."""
