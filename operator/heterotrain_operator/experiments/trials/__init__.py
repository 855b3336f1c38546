"""Run the trials of an experiment on this machine."""
