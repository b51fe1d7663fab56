"""The program runs backward while the interpreter shuts down: in atexit, __del__ and a finalizer"""

import atexit
import weakref

import torch

x = torch.ones(3, requires_grad=True)
kept = (x * x).sum()


class Late:
    def __del__(self):
        try:
            (x * x).sum().backward()
            print("in __del__", x.grad)
        except Exception as error:
            print(type(error).__name__, str(error)[:40])


def late(word, tensor=x):
    (tensor.exp() * tensor).sum().backward()
    print(word, tensor.grad)
    kept.backward(retain_graph=True)
    kept.backward()
    try:
        kept.backward()
    except RuntimeError as error:
        print(str(error)[:40])


late_object = Late()
finalizer = weakref.finalize(late_object, print, "finalized")
atexit.register(late, "at exit")
print("end of the program")
