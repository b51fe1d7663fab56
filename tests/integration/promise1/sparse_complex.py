"""Sparse tensors and gradients, complex numbers, FFT, linear algebra."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(2):
    optimizer.zero_grad()
    table(torch.tensor([1, 5, 5, 7])).square().sum().backward()
    optimizer.step()
show("sparse grad", table.weight.grad, table.weight)
dense = small(4, 4).requires_grad_()
matrix = torch.sparse_coo_tensor([[0, 1, 3], [2, 0, 3]], [1.0, 2.0, 3.0], (4, 4)).requires_grad_()
torch.sparse.mm(matrix, dense).sin().sum().backward()
show("sparse mm", matrix.grad, dense.grad)
(dense * 2).to_sparse().to_dense().sum().backward()
show("to_sparse", dense.grad)
z = torch.complex(small(4), small(4, seed=1)).requires_grad_()
out = (
    (z.exp() * z.conj()).abs().sum()
    + torch.view_as_real(z).pow(3).sum()
    + (z.imag * z.angle()).sum()
)
out.backward()
show("complex", z.grad)
torch.fft.ifft(torch.fft.fft(z) * z).real.sum().backward()
show("fft", z.grad)
square = (dense @ dense.t() + 4 * torch.eye(4)).clone()
(
    torch.linalg.inv(square).sum()
    + torch.linalg.slogdet(square)[1]
    + torch.linalg.eigvalsh(square).sum()
).backward()
show("linalg", dense.grad)
torch.linalg.cholesky(square.detach().requires_grad_()).sum().backward()
