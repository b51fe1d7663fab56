"""The metadata of nodes belongs to the program: what it puts there is there, and nothing else."""

from _show import small

x = small(3).requires_grad_()
out = x.exp().sum()
out.grad_fn.metadata["note"] = 1
out.backward(retain_graph=True)
print(dict(out.grad_fn.metadata), dict(out.grad_fn.next_functions[0][0].metadata))
