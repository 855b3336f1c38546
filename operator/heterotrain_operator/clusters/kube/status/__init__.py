"""What a job's users read: its status, its conditions and its events; built, not written."""
