"""The command line: one tree of commands. Each reads, calls one function of the package, and prints what came of it.

May import: everything.
"""
