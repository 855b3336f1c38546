"""`heterotrain run`: a job on this machine."""
