"""A user of sys.settrace, sys.setprofile and sys.monitoring."""

import sys

import torch
from _show import show, small

x = small(3).requires_grad_()
lines = []


def forward(x):
    h = x.exp()
    h = h * 2
    return h.sum()


def tracer(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        lines.append((event, frame.f_lineno - frame.f_code.co_firstlineno, frame.f_code.co_name))
        return tracer
    return None


print(sys.gettrace(), sys.getprofile())
sys.settrace(tracer)
loss = forward(x)
loss.backward()
print(sys.gettrace() is tracer)
sys.settrace(None)
print(lines)
calls = []
sys.setprofile(
    lambda frame, event, argument: (
        calls.append((event, frame.f_code.co_name))
        if frame.f_code.co_filename == __file__
        else None
    )
)
forward(x).backward()
sys.setprofile(None)
print(calls)
if sys.version_info >= (3, 12):
    tools = [
        sys.monitoring.get_tool(i) for i in (sys.monitoring.DEBUGGER_ID, sys.monitoring.PROFILER_ID)
    ]
    print(tools)
print(
    sys.getrecursionlimit(),
    sys.getswitchinterval(),
    sys.excepthook is sys.__excepthook__,
    sys.displayhook.__name__,
)
print(sys.unraisablehook is sys.__unraisablehook__, torch.is_grad_enabled())
show("grad", x.grad)
