"""Reads a program ahead: interprets its own bytecode over the objects that are there.

Nothing of the program's is run: what it would write goes into an overlay, a tensor is what its
graph leads to, and what is not known makes an answer less certain.
"""
