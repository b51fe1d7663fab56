"""Run the user's program as Python would."""
