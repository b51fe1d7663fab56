"""What a user who looks at nodes sees: names, edges, saved fields, sequence numbers."""

import torch
from _show import show, small

x, w = small(3, 3).requires_grad_(), small(3, 3, seed=1).requires_grad_()
y = torch.addmm(w, x, w).relu().norm()


def walk(node, depth=0):
    if node is None:
        return
    saved = {}
    for name in sorted(n for n in dir(node) if n.startswith("_saved")):
        value = getattr(node, name)
        saved[name] = tuple(value.shape) if isinstance(value, torch.Tensor) else value
    print("  " * depth, node.name(), len(node.next_functions), saved)
    for child, _ in node.next_functions:
        walk(child, depth + 1)


walk(y.grad_fn)
numbers = [node._sequence_nr() for node in (y.grad_fn, x.exp().grad_fn, x.sin().grad_fn)]
print([number - numbers[0] for number in numbers])
y.backward(retain_graph=True)
walk(y.grad_fn)
edge = torch.autograd.graph.get_gradient_edge(y)
show("edge", *torch.autograd.grad(edge, x))
with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
    show("exp", x.exp())
    try:
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
    except RuntimeError as error:
        print(error)
print(torch._C._autograd._saved_tensors_hooks_is_enabled())
