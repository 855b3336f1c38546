"""This worker's cgroup, of version 1 or 2: limits, throttling and pressure; version 1 has a folder of its own."""
