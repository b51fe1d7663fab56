"""The user's live objects (frames, variables, containers, tensors), read without running any of them."""
