"""A KeyboardInterrupt from a real signal, first caught and then not."""

import os
import signal

from _show import small

print(
    signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
)
x = small(3).requires_grad_()
try:
    x.register_hook(lambda g: os.kill(os.getpid(), signal.SIGINT))
    x.exp().sum().backward()
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("caught")
os.kill(os.getpid(), signal.SIGINT)
