"""One thread raises, another one lives longer than the main thread."""

import atexit
import threading
import time

done = threading.Event()


def fail() -> None:
    raise RuntimeError("in a thread")


def outlive() -> None:
    done.wait()
    time.sleep(0.2)
    print(
        "the thread ends", threading.main_thread().is_alive(), "__file__" in globals(), flush=True
    )


atexit.register(lambda: print("exit handler", threading.active_count(), "__file__" in globals()))
failing = threading.Thread(target=fail, name="failing")
failing.start()
failing.join()
threading.Thread(target=outlive).start()
done.set()
print("main ends")
