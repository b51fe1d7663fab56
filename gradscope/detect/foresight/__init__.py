"""Predicted: which held graphs are about to be freed or went stale, though the code will run
them.
"""
