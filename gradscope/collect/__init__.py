"""Collect: what torch holds at this moment, as marks, counts and frozen data; no live object
outlives the look.
"""
