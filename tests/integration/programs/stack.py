"""Prints what lies between the functions of the program."""

import traceback


def inner() -> None:
    try:
        raise ValueError("caught")
    except ValueError:
        traceback.print_exc()
    print([frame.name for frame in traceback.extract_stack()][-2:])


inner()
