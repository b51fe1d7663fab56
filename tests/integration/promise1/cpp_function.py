"""A custom Function written in C++."""

import sys

from _show import show, small
from torch.utils.cpp_extension import load_inline

SOURCE = """
struct Cube : public torch::autograd::Function<Cube> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor x) {
    ctx->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    auto x = ctx->get_saved_variables()[0];
    return {grads[0] * 3 * x * x};
  }
};
torch::Tensor cube(torch::Tensor x) { return Cube::apply(x); }
"""
extension = load_inline("promise1_cube", SOURCE, functions=["cube"], extra_cflags=["-O0"])
x = small(4).requires_grad_()
out = extension.cube(x)
print(out.grad_fn.name())
out.sum().backward()
show("grad", x.grad)
try:
    out.sum().backward()
except RuntimeError as error:
    print(error)
h = x * 1
out = extension.cube(h)
h.add_(1)
try:
    out.sum().backward()
except RuntimeError as error:
    print(error)
sys.exit(3)
