"""`python -m postroom`: the same as the `postroom` command."""

import sys

from postroom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
