"""The command line: parses what the user asks for, and prints what comes of it. It needs no torch."""
