"""What a decision changes on the cluster: pods, the plan's delivery, status and events."""
