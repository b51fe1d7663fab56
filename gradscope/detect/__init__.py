"""Detects, while the program runs, what the engine will raise (certain), what the code will do next
(predicted), and what grows.
"""
