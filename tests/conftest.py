"""For all tests: what hypothesis tries is the same in every run, so that no change is blamed for another's luck; and
commands that are started hear the signals that end them.

`make test` tries few examples, `make test-all` many (`--hypothesis-profile=thorough`).
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=300)
settings.load_profile("quick")

# A shell ignores SIGINT for what it runs in the background, and nohup SIGHUP; whoever is started by a test would, too.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
