"""An uncaught in-place error below a function that chains it."""

from _show import small

x = small(3).requires_grad_()
h = x * 1
y = h * h
h.zero_()


def step():
    try:
        y.sum().backward()
    except RuntimeError as error:
        raise ValueError("training failed") from error


try:
    step()
finally:
    print("finally")
