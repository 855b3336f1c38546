"""What the operator creates on a cluster, built as plain dicts."""
