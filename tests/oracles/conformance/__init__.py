"""Runs the tests of a PyTorch checkout plain and watched, and compares: ``python -m
tests.oracles.conformance``.
"""
