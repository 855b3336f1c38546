"""What is known of a worker: how long a step takes it, what a sample costs it, and what its memory holds."""
