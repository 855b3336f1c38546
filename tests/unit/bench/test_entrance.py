"""The recording of a command on a terminal."""

import sys

import entrance
import pytest
import runner


def test_command_that_hangs_is_ended_and_what_it_showed_is_said():
    shows = "print('step 1', flush=True); import time; time.sleep(3600)"
    with pytest.raises(runner.BenchmarkError, match=r"has not ended after 2 s:\nstep 1"):
        entrance.record([sys.executable, "-c", shows], longest=2.0)
