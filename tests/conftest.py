"""For all tests: what hypothesis tries is the same in every run, so that no change is blamed for another's luck; and
commands that are started hear the signals that end them.

`make test` tries 25 examples, `make test-all` 100 (`--hypothesis-profile=thorough`), and on each further version of
Python 5 (`few`), for there the same code is only to be understood as well.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

settings.register_profile("few", derandomize=True, deadline=None, max_examples=5)
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("quick")

# A shell ignores SIGINT for what it runs in the background, and nohup SIGHUP; whoever is started by a test would, too.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may take the longest come first, so that in the end nobody waits for one. `hack/tests.sh` looks for
    the files that are marked as alone, so a mark that comes from elsewhere would be lost.
    """
    items.sort(key=lambda item: -float(mark.args[0]) if (mark := item.get_closest_marker("timeout")) else 0.0)
    for path in {item.path for item in items if item.get_closest_marker("alone")}:
        assert "mark.alone" in path.read_text("utf-8"), f"{path} has no mark.alone of its own"
