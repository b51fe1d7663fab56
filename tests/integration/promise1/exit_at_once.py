"""os._exit: nothing more is run, and the status is its own."""

import os
import sys

from _show import show, small

x = small(3).requires_grad_()
x.exp().sum().backward()
show("grad", x.grad)
sys.stdout.flush()
os._exit(5)
