"""Imports a module that does not exist, first inside try, then not."""

try:
    import no_such_module_a  # noqa: F401
except ImportError:
    import no_such_module_b  # noqa: F401
