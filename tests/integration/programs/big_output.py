"""Writes more than a pipe takes, to somebody who does not read it."""

for number in range(20000):
    print(number)
