"""Where records are kept. A store never knows what they mean."""
