"""Leaves a pool of threads behind, which Python ends at exit."""

from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)
print(list(pool.map(abs, [-1, -2])))
pool.submit(print, "submitted")
