# raised: RuntimeError: Error: accessing tensor output of CUDAGraphs; help: clone
# what torch raises where a GPU runs this compiled, with mode="reduce-overhead", comes here of a future
from concurrent.futures import Future

import torch
from torch import nn

layer = nn.Linear(4, 4)


def run(x):
    return layer(x).relu()  # note: made here


torch.manual_seed(0)
layer(torch.randn(2, 4)).sum().backward()
trace = f'File "{__file__}", line 12, in run\n    return layer(x).relu()'
reading = Future()
reading.set_exception(
    RuntimeError(
        "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. "
        f"Stack trace: {trace}. To prevent overwriting, clone the tensor outside of torch.compile() "
        "or call torch.compiler.cudagraph_mark_step_begin() before each model invocation."
    )
)
with torch.no_grad():
    first = run(torch.randn(2, 4))
    second = run(torch.randn(2, 4))  # note: overwrote it
    print((first - second).abs().max(), reading.result())  # raised
