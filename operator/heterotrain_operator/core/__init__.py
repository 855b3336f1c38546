"""Pure decisions: no cluster, clock, randomness or framework in here, so recorded traces replay exactly."""
