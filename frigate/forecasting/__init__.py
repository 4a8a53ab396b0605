"""A trained run put to use: a forecast at one moment, a live forecast snapshot by snapshot, a file for other programs.

May import: `training` and below.
"""
