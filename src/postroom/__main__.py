"""Runs the `postroom` command by `python -m postroom`."""

import sys

from postroom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
