"""Ends with an exception raised while another is handled."""

try:
    print(undefined_name)
except NameError:
    [].append(1, 2)
