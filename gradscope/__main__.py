"""Makes ``python -m gradscope`` the same as ``gradscope``."""

from gradscope.cli import main

if __name__ == "__main__":
    main()
