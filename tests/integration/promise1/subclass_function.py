"""A tensor subclass whose __torch_function__ prints every call that it sees."""

import torch
from _show import show, small


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print("function", getattr(func, "__name__", func), [t.__name__ for t in types])
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            result.tag = [getattr(a, "tag", None) for a in args if isinstance(a, cls)]
        return result


x = small(3).as_subclass(Logged).requires_grad_()
y = (x.exp() * 2).sin() + x
y.sum().backward()
show("grad", x.grad.as_subclass(torch.Tensor))
(g,) = torch.autograd.grad((x * x).sum(), x)
print(type(g).__name__, type(x.detach()).__name__)
torch.autograd.backward([x.sum(), x.prod()])
x.relu().retain_grad()
t = small(3).as_subclass(Tagged).requires_grad_()
t.tag = "root"
out = (t * t).exp()
print(out.tag, type(out).__name__)
out.sum().backward()
show("grad", t.grad.as_subclass(torch.Tensor))
parameter = torch.nn.Parameter(small(2).as_subclass(Tagged))
print(type(parameter).__name__)
