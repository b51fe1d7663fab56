"""Graphs built in generators, coroutines, context managers, comprehensions and lambdas."""

import asyncio
import contextlib
import functools

from _show import show, small

x = small(4).requires_grad_()


def steps():
    state = x.exp()
    while True:
        received = yield state
        state = (state * received).sin()


walker = steps()
next(walker)
out = [walker.send(number) for number in (1.0, 2.0)]
out[-1].sum().backward()
show("generator", x.grad)
walker.close()


async def train(number):
    await asyncio.sleep(0)
    y = x.pow(number).sum()
    await asyncio.sleep(0)
    y.backward()
    return number


async def main():
    print(await asyncio.gather(*(train(n) for n in range(1, 4))))


asyncio.run(main())
show("async", x.grad)


@contextlib.contextmanager
def temporary():
    yield (x * 2).tanh()


with temporary() as y:
    y.sum().backward()
functools.reduce(lambda a, b: a * b, [x.sin() for _ in range(3)]).sum().backward()
eval(compile("(x.exp() * x).sum().backward()", "<made up>", "exec"))
exec("def f(t):\n    return t.cos().sum()\nf(x).backward()")
show("grad", x.grad)
