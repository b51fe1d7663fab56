"""Reads the user's source and bytecode without running them; imports no torch."""
