"""Text for machines."""
