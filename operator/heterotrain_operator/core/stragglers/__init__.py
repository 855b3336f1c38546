"""Stragglers: workers that are slow by fault rather than by design, found by evidence over time.

`verdict.py` and `evidence.py` are values: what is said of a worker, and what is remembered of it. `actions.py` says
what each action entails. A rule takes windows of steps into the evidence; rules stand one per file, and `rules.py` has
them by name. `remedies.py` predicts what could be done, and `watch.py` is what a decision calls.
"""
