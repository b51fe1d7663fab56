"""The node of a view whose base was changed in place is built when the program asks, not before."""

import torch

weight = torch.ones(3, requires_grad=True)


def number_of(view):
    """Return how many nodes were built before the view's, since the count began."""
    return view.grad_fn._sequence_nr() - first


def step(table, rows):
    table.mul_(weight)
    loss = (table * 2).sum()
    loss.backward(retain_graph=True)
    middle = table.exp()
    return loss, middle, rows


first = torch._C._autograd._get_sequence_nr()
for turn in range(3):
    table = torch.ones(3, 3)
    row, state = table[0], {"rows": [table[1]]}
    loss, middle, state = step(table, state)
    loss.backward()
    print(turn, number_of(row), number_of(state["rows"][0]), state["rows"][0].is_leaf)

order = []
table = torch.ones(3, 3)
row = table[0]
table.mul_(weight)
other = table.sigmoid()
(other.sum() * 1).backward(retain_graph=True)
later = table.exp()
joined = row.sum() + later.sum() + other.sum()
for name, tensor in (("row", row), ("later", later), ("other", other)):
    tensor.grad_fn.register_prehook(lambda g, name=name: order.append(name))
joined.backward()
print(order)
