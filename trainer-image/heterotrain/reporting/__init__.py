"""What a worker reports: times, memory, records of steps, and the page at /metrics."""
