"""The command line: one tree of commands. Each reads its input, calls one function, and prints the result."""
