"""Collects what torch holds at this moment, as marks, counts and frozen data; keeps no live object
past an inspection.
"""
