"""Stragglers: workers that are slow by fault rather than by design, found by evidence over time.

`verdict.py` and `evidence.py` are values: what is said of a worker, what each action entails, and what is remembered of
a worker. A rule takes windows of steps into the evidence: `expected_time.py` is ours, `rule.py` has the paper's.
`remedies.py` predicts what could be done, and `watch.py` is what a decision calls.
"""
