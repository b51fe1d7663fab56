"""SavedTensor.register_hooks on single saved tensors of a node."""

from _show import show, small

x = small(4).requires_grad_()
y = x.exp() * x
node = y.grad_fn
print(sorted(name for name in dir(node) if name.startswith("_raw_saved")))
node._raw_saved_self.register_hooks(
    lambda t: print("pack", tuple(t.shape), t.requires_grad) or t.detach().clone(),
    lambda t: print("unpack") or t,
)
try:
    node._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
except RuntimeError as error:
    print(error)
exp = node.next_functions[0][0]
exp._raw_saved_result.register_hooks(lambda t: t.detach() * 2, lambda t: t)
y.sum().backward()
show("grad", x.grad)
try:
    exp._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
except RuntimeError as error:
    print(error)
try:
    print(exp._saved_result)
except RuntimeError as error:
    print(error)
