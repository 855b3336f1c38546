"""A job's life: how it starts, gets on, is repaired, starts again and ends, and the plans that its workers follow."""
