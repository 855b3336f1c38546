"""How large each worker's batch should be: policies, when a proposal is taken, and whether it kept its promise."""
