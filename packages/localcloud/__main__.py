"""`python -m localcloud`."""

import sys

from localcloud.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
