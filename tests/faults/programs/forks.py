"""The program forks in the middle; the child trains on and ends as it likes"""

import os
import sys

import torch

x = torch.ones(3, requires_grad=True)
for number in range(6):
    (x * x).sum().backward()
    if number == 3 and not os.fork():
        y = (x * x).sum()
        y.backward()
        try:
            y.backward()
        except RuntimeError as error:
            print("child", str(error)[:40], x.grad, flush=True)
        if sys.argv[1:] == ["_exit"]:
            os._exit(0)
        sys.exit(4)
    elif number == 3:
        print("child ended with", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
print(x.grad)
