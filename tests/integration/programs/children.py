"""Starts processes: forked by hand, and by multiprocessing with the method that its argument names."""

import multiprocessing
import os
import sys
from dataclasses import dataclass

print("imported as", __name__, flush=True)


@dataclass
class Job:
    number: int


def work(job: Job, results) -> None:
    main = sys.modules["__main__"]
    results.put((job, sys.argv, getattr(main, "__spec__", None) is None))


def main() -> None:
    method = sys.argv[1]
    if method == "os.fork":
        child = os.fork()
        if child:
            print("child left with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            print("in the child", flush=True)
            exec(sys.argv[2])
        return
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=work, args=(Job(3), results))
    process.start()
    job, argv, no_spec = results.get()
    process.join()
    print(job, argv, no_spec, process.exitcode)


if __name__ == "__main__":
    main()
