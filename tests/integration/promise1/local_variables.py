"""What the program sees of its own variables: locals(), frames, exec, closures, and what they keep alive."""

import gc
import inspect
import sys
import weakref

import torch
from _show import small

w = small(4).requires_grad_()


def kept_dict(early):
    x = 5
    if early:
        mine = locals()
    loss = (w.exp() * x).sum()
    loss.backward()
    if not early:
        mine = locals()
    later = 7
    (w * w).sum().backward()
    assert later
    return sorted(mine), mine["x"]


def through_frames():
    own = 1
    frame = inspect.currentframe()
    seen = dict(frame.f_locals)
    (w.sin() * own).sum().backward()
    own = 2
    return sorted(seen), seen["own"], frame.f_locals["own"], sorted(frame.f_locals)


def lifetimes():
    t = w.exp()
    (g,) = torch.autograd.grad(t.sum(), w, create_graph=True)
    gone = weakref.ref(t)
    del t, g
    return gone() is None


def through_data():
    mine = locals()
    h = w.exp()
    gone = weakref.ref(h)
    h.data.add_(1)
    h.sum().backward()
    del h
    return sorted(mine), gone() is None


def executed():
    namespace = {"w": w}
    code = "mine = locals()\n(w * w).sum().backward()\nafter = sorted(mine)[:2]"
    exec(code, namespace, namespace)
    inner = 3
    scope = dict(locals())
    exec("(w * inner).sum().backward()\nfresh = inner", {"w": w}, scope)
    return namespace["after"], scope["fresh"], "fresh" in locals()


def closures():
    shared, counts = 1, []

    class Body:
        first = shared
        names = sorted(locals())
        (w * w * first).sum().backward()
        second = first + 1

    def inner(n=2):
        nonlocal shared
        shared += n
        kept = locals()
        (w * w * shared).sum().backward()
        counts.append(sorted(kept))
        return kept["shared"]

    values = [inner(n) for n in (1, 2) if (w * n).sum().backward() is None]
    return Body.names, Body.second, values, shared, counts


def generate():
    total = 0
    while total < 3:
        kept = locals()
        (w * w).sum().backward()
        total += 1
        yield sorted(kept), kept["total"]


def traced():
    def trace(frame, event, argument):
        return trace if frame.f_code is target.__code__ else None

    def target():
        number, h = 1, w.exp()
        gone = weakref.ref(h)
        h.sum().backward()
        number += 1
        del h
        return number, gone() is None

    sys.settrace(trace)
    try:
        return target()
    finally:
        sys.settrace(None)


for step in range(3):
    print(step, kept_dict(True), kept_dict(False), through_frames())
    print(step, lifetimes(), through_data(), executed())
    print(step, closures(), list(generate()), traced())
mine = locals()
(w * w).sum().backward()
print(mine is globals(), "mine" in mine, w.grad is not None)
gc.collect()
print(sum(type(each) is torch.Tensor for each in gc.get_objects()))
