"""What each `gradscope <command>` does, and `pytest --gradscope`."""
