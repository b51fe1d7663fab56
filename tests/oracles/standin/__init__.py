"""A small suite in the style of torch's own autograd tests, for when no checkout is at hand."""
