"""CPU limits that change while a job trains."""
