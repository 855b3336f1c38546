"""A job on this machine: pods are processes, container limits are cgroups, the plan is a folder."""
