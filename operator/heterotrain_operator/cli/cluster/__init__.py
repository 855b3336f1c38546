"""The commands that read a cluster, and how they show what they have read."""
