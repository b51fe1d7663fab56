"""Random programs against the engine."""
