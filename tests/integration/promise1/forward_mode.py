"""Forward-mode derivatives, alone and over backward."""

import torch
import torch.autograd.forward_ad as fwd
from _show import show, small

x, t = small(4), small(4, seed=1)
with fwd.dual_level():
    dual = fwd.make_dual(x, t)
    out = fwd.unpack_dual((dual.exp() * dual).sin())
    show("jvp", out.primal, out.tangent)
x.requires_grad_()
with fwd.dual_level():
    dual = fwd.make_dual(x, t)
    tangent = fwd.unpack_dual(dual.exp() * dual).tangent
    show("over", *torch.autograd.grad(tangent.sum(), x))
show("functional", *torch.autograd.functional.jvp(lambda v: v.sin() * v, x, t))
