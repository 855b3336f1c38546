"""The spec of a job: a file for each of its sections, named as in the YAML, with the rules that concern it alone."""
