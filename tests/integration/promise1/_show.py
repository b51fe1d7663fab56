"""Prints tensors so that two runs can be compared bit for bit."""

import hashlib

import torch


def show(label, *tensors):
    for tensor in tensors:
        if tensor is None:
            print(label, None)
            continue
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        data = torch.view_as_real(plain) if plain.is_complex() else plain
        data = data.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
        digest = hashlib.blake2b(bytes(data.tolist()), digest_size=8).hexdigest()
        print(label, plain.dtype, tuple(plain.shape), digest)


def small(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
