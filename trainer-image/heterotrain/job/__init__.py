"""This process as a worker of a job: its environment, its signals, its last words, and the plan it follows."""
