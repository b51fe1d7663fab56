"""Is interrupted when its main thread has ended already and waits for another one."""

import atexit
import os
import signal
import threading
import time

atexit.register(print, "exit handler")


def work() -> None:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)


threading.Thread(target=work).start()
print("main ends", flush=True)
