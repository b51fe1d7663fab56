"""What a program sees of being watched line by line while its graphs are alive: nothing."""

import signal
import sys
import threading
import traceback
import weakref

from _show import show, small

DEBUGGING = sys.gettrace() is not None
w = small(3).requires_grad_()
alive = (w * 2).exp()
print(
    DEBUGGING, sys.gettrace(), threading.gettrace(), callable(sys.gettrace), sys.gettrace.__name__
)


class Owner:
    pass


def counts(x):
    return sys.getrefcount(x)


def locals_stay(first):
    kept = locals()
    later = first + 1
    another = later + 1
    return sorted(kept), another


def dies_at_once():
    owner = Owner()
    ref = weakref.ref(owner)
    print(counts(owner), sys.getrefcount(owner))
    owner = None
    print(ref() is None)
    keep = [Owner()]
    ref = weakref.ref(keep[0])
    keep.clear()
    return ref() is None


def suspended():
    for _ in range(2):
        owner = Owner()
        yield weakref.ref(owner)
        del owner
        yield None


print(locals_stay(1))
print(dies_at_once())
generator = suspended()
ref = next(generator)
print(ref() is not None)
next(generator)
print(ref() is None)
next(generator)
generator.close()


def closure():
    total, lock = 0, threading.Lock()

    def add():
        nonlocal total
        for _ in range(3000):
            with lock:
                total += 1

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    add()
    for thread in threads:
        thread.join()
    return total


print(closure())


def fails(depth):
    y = w.sigmoid()
    if depth == 0:
        raise ValueError(float(y.sum().detach()) > 0)
    fails(depth - 1)


try:
    fails(3)
except ValueError:
    traceback.print_exc(file=sys.stdout)


def endless(n):
    return endless(n + 1)


try:
    endless(0)
except RecursionError as error:
    print(
        type(error).__name__,
        sorted({entry.name for entry in traceback.extract_tb(error.__traceback__)}),
    )


class LateError(Exception):
    pass


def late(number, frame):
    raise LateError(frame.f_code.co_name)


def spin():
    count = 0
    while True:
        count += 1


if hasattr(signal, "setitimer"):
    signal.signal(signal.SIGALRM, late)
    for _ in range(5):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            spin()
        except LateError as error:
            print(
                "late", sorted({entry.name for entry in traceback.extract_tb(error.__traceback__)})
            )
    signal.setitimer(signal.ITIMER_REAL, 0)


def tracer(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        lines.append((frame.f_code.co_name, event))
        return tracer
    return None


def traced():
    x = 1
    return x + 1


lines = []
sys.settrace(tracer)
traced()
print(sys.gettrace() is tracer)
sys.settrace(None)
print(lines, sys.gettrace())
alive.sum().backward()
show("grad", w.grad)
