"""The user's live objects, read without running any: frames, variables, containers, tensors."""
