"""Shows a recording or a graph: terminal text, pictures, HTML and the machine formats."""
