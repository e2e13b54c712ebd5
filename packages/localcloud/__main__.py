"""`python -m localcloud`."""

import sys

from localcloud.thin_sdk import leave_the_sdk_out

if __name__ == "__main__":
    leave_the_sdk_out()
    from localcloud.cli import main

    sys.exit(main(sys.argv[1:]))
