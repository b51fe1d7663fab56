"""When tensors, storages and nodes die: weak references looked at in every phase."""

import weakref

import torch
from _show import small
from torch.multiprocessing.reductions import StorageWeakRef

x = small(4).requires_grad_()


class Owner:
    pass


def step(retain):
    h = x * 2
    e = h.exp()
    s = e.sigmoid()
    loss = (s * h).sum()
    tensors = {"h": weakref.ref(h), "e": weakref.ref(e), "s": weakref.ref(s)}
    storages = {"h": StorageWeakRef(h.untyped_storage()), "e": StorageWeakRef(e.untyped_storage())}

    def look(moment):
        print(
            moment,
            {k: r() is not None for k, r in tensors.items()},
            {k: not r.expired() for k, r in storages.items()},
        )

    look("built")
    del h, e, s
    look("names deleted")
    loss.backward(retain_graph=retain)
    look("after backward")
    del loss
    look("loss deleted")


step(False)
step(True)
owner = Owner()
ref = weakref.ref(owner)
y = x.sin()
y.register_hook(lambda g, owner=owner: None)
del owner
print("hook's owner", ref() is not None)
del y
print("hook's owner", ref() is not None)
y = x.exp()
node = weakref.ref(y.grad_fn) if hasattr(type(y.grad_fn), "__weakref__") else None
y.grad_fn.metadata["owner"] = owner = Owner()
ref = weakref.ref(owner)
del owner
print("node's owner", ref() is not None)
y.sum().backward()
print("after backward", ref() is not None)
del y
print("after del", ref() is not None)


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.owner = Owner()
        refs.append(weakref.ref(ctx.owner))
        ctx.save_for_backward(t)
        return t * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


refs = []
out = Keep.apply(x)
out.sum().backward()
print("ctx", refs[0]() is not None)
del out
print("ctx", refs[0]() is not None)
for _ in range(3):
    loss = Keep.apply(x).sum()
    loss.backward()
print([r() is not None for r in refs])
