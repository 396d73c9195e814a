"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # machines are shared, and slow at times
settings.load_profile("untimed")
