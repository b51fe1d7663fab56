"""A chain of 60,000 operations: run backward, dropped without a backward, and left behind at exit."""

import threading

from _show import show, small

x = small(2).requires_grad_()


def chain():
    y = x
    for _ in range(60_000):
        y = y.sin()
    return y.sum()


loss = chain()
loss.backward()
show("grad", x.grad)
del loss
chain()
worker = threading.Thread(target=lambda: chain().backward())
worker.start()
worker.join()
show("grad", x.grad)
left = chain()
print("done")
