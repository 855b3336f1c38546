"""What a worker tells of itself: times, memory, records of steps, and the page at /metrics."""
