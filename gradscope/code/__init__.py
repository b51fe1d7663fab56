"""The user's source and bytecode, read without running it; no torch."""
