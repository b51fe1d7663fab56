"""sys.exit with a number, atexit functions, and a finally on the way."""

import atexit
import sys

from _show import small

atexit.register(print, "first registered")
atexit.register(
    lambda: small(3).requires_grad_().exp().sum().backward() or print("backward in atexit")
)
small(3).requires_grad_().exp().sum().backward()
try:
    sys.exit(7)
finally:
    print("finally")
