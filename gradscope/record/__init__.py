"""Record: what was seen, as plain data in a file that survives a killed process."""
