"""multiprocessing by fork and by spawn: training in children, a pool, a failing child."""

import torch
import torch.multiprocessing as mp
from _show import show, small


def train(seed):
    w = small(4, seed=seed).requires_grad_()
    for _ in range(3):
        loss = (w.exp() * w).sum()
        loss.backward()
    return w.grad.tolist()


def child(queue):
    try:
        y = small(2).requires_grad_().exp()
        y.sum().backward()
        y.sum().backward()
    except RuntimeError as error:
        queue.put(str(error)[:40])


def failing():
    raise SystemExit(9)


def main(start):
    torch.set_num_threads(1)
    w = small(3).requires_grad_()
    context = mp.get_context(start)
    with context.Pool(2) as pool:
        for gradient in pool.map(train, range(4)):
            print([number.hex() for number in gradient])
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
    process = context.Process(target=failing)
    process.start()
    process.join()
    print(process.exitcode)
    w.sin().sum().backward()
    show("grad", w.grad)


if __name__ == "__main__":
    main("fork")
    main("spawn")
