"""The command line: runs a job here and says what came of it; needs neither torch nor Kubernetes."""
