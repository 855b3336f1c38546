"""The operator on kopf: handlers that are thin, and a loop for every job that runs while this replica leads."""
