"""Leaves with what its argument evaluates to."""

import sys


class Odd:
    def __str__(self) -> str:
        return "odd"


class MyExit(SystemExit):
    pass


print("leaving")
sys.stdout.write("without newline")
exec(sys.argv[1])
