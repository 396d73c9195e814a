"""How a handler is called. An executor never knows why."""
