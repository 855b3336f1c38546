"""What is remembered of a job as a whole: one value for each owner, each with its codec beside its fields."""
