"""The program puts saved-tensor hooks on top of ours and never takes them off"""

import torch

packed = []


def pack(tensor):
    packed.append(tuple(tensor.shape))
    return tensor * 2


hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2)
hooks.__enter__()
x = torch.ones(3, requires_grad=True)
y = (x * x).exp().sum()
try:
    y.backward()
    y.backward()
except RuntimeError as error:
    print(str(error)[:40])
print(packed, x.grad)
