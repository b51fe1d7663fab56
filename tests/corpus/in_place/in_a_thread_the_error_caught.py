"""In a thread, the error caught."""

import torch
torch.manual_seed(0)

import threading
def work():
    w = torch.randn(4, requires_grad=True)
    y = torch.exp(w)  # created: GS202 GS201
    y += 1  # warning: GS202 [clone]; modified_by: GS202 GS201
    try:
        y.sum().backward()  # error: GS201 [clone]; failing_node: GS202; next_read: GS202
    except RuntimeError:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
