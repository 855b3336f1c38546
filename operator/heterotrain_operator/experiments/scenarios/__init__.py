"""Scenarios of the simulated backend: small files that users write, their schema, and what they mean."""
