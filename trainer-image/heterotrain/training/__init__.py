"""Training: the step from its begin to its commit, and everything between two steps."""
