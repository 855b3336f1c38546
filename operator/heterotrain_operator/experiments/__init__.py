"""Runs and comparisons on this machine, carried out, measured and reported, for the command line and benchmarks."""
