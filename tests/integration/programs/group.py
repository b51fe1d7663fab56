"""Ends with a group of exceptions."""


def fail(what: str) -> Exception:
    try:
        raise ValueError(what)
    except ValueError as error:
        return error


raise ExceptionGroup("several", [fail("a"), ExceptionGroup("deeper", [fail("b")])])
