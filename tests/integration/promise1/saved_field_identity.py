"""Reading a saved field of a node gives the very tensor that was saved, where that is an input."""

from _show import small

x = small(3).requires_grad_()
out = x.exp()
print((x * x).grad_fn._saved_self is x, out.grad_fn._saved_result is out)
