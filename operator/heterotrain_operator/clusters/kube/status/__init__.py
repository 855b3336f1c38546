"""What a job's users are told: its status, its conditions and its events."""
