"""One module for each verb; each has one click command (or group) named `command`."""
