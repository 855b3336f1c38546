"""What the exit code of a command says."""

SUCCEEDED = 0
FAILED = 1
BAD_INPUT = 2
