"""Generated tests are the same in every run, and how long one takes is no matter of right or wrong."""

from hypothesis import settings

settings.register_profile("dshd", deadline=None, derandomize=True)
settings.load_profile("dshd")
