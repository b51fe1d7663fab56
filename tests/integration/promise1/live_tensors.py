"""The most tensors and storages that are alive at once in a training loop, seen from inside the program."""

import weakref

import torch
from _show import show, small
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

torch.manual_seed(0)
alive, peak = weakref.WeakSet(), 0
storages, peak_bytes = {}, 0


def note(module, inputs, output):
    global peak, peak_bytes
    alive.add(output)
    storage = output.untyped_storage()
    storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
    del storage
    peak = max(peak, len(alive))
    peak_bytes = max(peak_bytes, sum(size for ref, size in storages.values() if not ref.expired()))


net = nn.Sequential(
    *(
        layer
        for _ in range(4)
        for layer in (nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Sigmoid())
    )
)
for module in net:
    module.register_forward_hook(note)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(4):
    optimizer.zero_grad()
    loss = net(small(16, 8, seed=step)).square().mean()
    loss.backward()
    optimizer.step()
    held = sum(size for ref, size in storages.values() if not ref.expired())
    print(step, loss.item().hex(), len(alive), peak, held, peak_bytes)
    storages = {key: pair for key, pair in storages.items() if not pair[0].expired()}
show("weights", *net.parameters())
