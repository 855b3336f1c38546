"""For all tests: what hypothesis tries is the same in every run, so that no change is blamed for another's luck.

`make test` tries few examples, `make test-all` many (`--hypothesis-profile=thorough`).
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=300)
settings.load_profile("quick")
