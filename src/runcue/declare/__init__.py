"""What users write, checked once: services, tasks, callbacks, options, submissions."""
