"""Ends with an exception that has a cause, a context and a note, raised through several frames."""


class OddError(Exception):
    pass


def inner(n: int) -> float:
    return 1 / n


def outer() -> None:
    try:
        inner(0)
    except ZeroDivisionError as error:
        try:
            {}["missing"]
        except KeyError as context:
            context.add_note("a note")
            raise OddError("two\nlines") from error


print("before")
outer()
