"""A worker thread."""

import torch
torch.manual_seed(0)

import threading
def work():
    w = torch.randn(4, requires_grad=True)
    for _ in range(3):
        y = w.exp()
        y.sum().backward()
        with torch.no_grad():
            y += 1
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
