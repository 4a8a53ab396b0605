"""Training: the loop, the checkpoint on disk, several processes at once, parts of a large network.

May import: `baselines`, `nn` and below.
"""
