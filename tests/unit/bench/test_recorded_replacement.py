"""The recording of a replacement, as the documents show it."""

import table

RECORDED = {
    "benchmark": "replacement",
    "kubernetes": "v1.34.4",
    "machine": {"cpus": 2, "load": 3.5},
    "straggler": "digits-slowed-0",
    "newcomer": "digits-slowed-1",
    "restarts": 0,
    "last_step_of_straggler": 311,
    "first_step_of_newcomer": 312,
    "survivors": [{"worker": "digits-first-0", "idle_seconds": 0.1234, "usual_step_seconds": 0.08}],
    "pods": [{"seconds": 41.2, "line": "digits-slowed-1   1/1   Running   0   12s"}],
    "events": [{"seconds": 40, "reason": "WorkerReplaced", "message": "digits-slowed-1 trains"}],
}


def test_a_recording_is_shown_with_its_figures_its_events_and_its_pods():
    shown = table.rendered([RECORDED], "replacement")
    assert "`digits-first-0` 123 ms beyond its usual step of 80 ms" in shown
    assert "last step of `digits-slowed-0` was 311, the first one of `digits-slowed-1` 312" in shown
    assert "   40 s  WorkerReplaced: digits-slowed-1 trains" in shown
    assert "   41 s  digits-slowed-1   1/1   Running" in shown
