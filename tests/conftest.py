"""For all tests: what hypothesis tries is the same in every run, so that no change is blamed for another's luck."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")
