"""Observed: what keeps graphs alive from one iteration to the next, and graphs kept or built for
nothing.
"""
