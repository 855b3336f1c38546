"""Training without steps in common: each worker by itself, through a parameter server."""
