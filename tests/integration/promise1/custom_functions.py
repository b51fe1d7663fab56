"""autograd.Function: state that is no tensor, several outputs, mark_dirty, once_differentiable, materialized grads."""

import torch
from _show import show, small
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, note):
        ctx.factor, ctx.note, ctx.kept = factor, note, x
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        print("backward of", ctx.note, ctx.needs_input_grad, sorted(k for k in ctx.__dict__))
        return grad * ctx.factor + 0 * ctx.kept, None, None


class Split(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        index = (x > y).long()
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(x, None, y, index)
        return x * y, x - y, index

    @staticmethod
    def backward(ctx, product, difference, _):
        x, nothing, y, index = ctx.saved_tensors
        print("got", product is None, difference is None, nothing, index.tolist())
        return (None if product is None else product * y), (
            None if product is None else product * x
        )


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out


class New(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx, sine, cosine):
        return sine * ctx.saved_tensors[0] + 0 * cosine


x, y = small(5).requires_grad_(), small(5, seed=1).requires_grad_()
product, difference, index = Split.apply(Scale.apply(x, 3, "x"), y)
print(product.grad_fn.name(), index.requires_grad)
product.sum().backward()
show("grad", x.grad, y.grad)
out = Dirty.apply(x * 2)
(first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
try:
    torch.autograd.grad(first.sum(), x)
except RuntimeError as error:
    print(type(error).__name__, error)
sine, cosine = New.apply(x)
(sine.sum() + cosine.sum()).backward()
show("grad", x.grad)
show("vmap", *torch.func.vmap(New.apply)(small(3, 5)))
