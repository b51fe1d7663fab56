"""Does to the standard streams what its argument says."""

import sys

print("to stdout")
print("to stderr", file=sys.stderr)
exec(sys.argv[1])
