"""runcue-sim: the real engine against mock services, on virtual time."""
