"""One command, one file: what `gradscope <command>` does, and `pytest --gradscope`."""
