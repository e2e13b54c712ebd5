"""`docker` on a machine whose boot image lacks it. It fails as the shell does for a command that does not exist."""

import sys

if __name__ == "__main__":
    print("docker: command not found", file=sys.stderr)
    sys.exit(127)
