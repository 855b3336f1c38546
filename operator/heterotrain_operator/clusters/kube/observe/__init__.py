"""What a cluster shows of a job, in a few bounded facts."""
