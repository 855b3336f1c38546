"""Figures of trials from the workers' own records: steps, profiles, ceilings, summaries; pure."""
