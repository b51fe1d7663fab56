"""A module that fails when it is run."""

import sys

from .. import __name__ as parent

print(__name__, __package__, parent, sys.argv[1:])
raise RuntimeError("in a nested module")
