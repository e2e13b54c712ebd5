"""`journalctl -u UNIT [-n N] [-f]` on a simulated machine."""

import argparse
import sys
import time
from collections.abc import Sequence

from localcloud.running.shims import units
from localcloud.running.shims.machine import this_machine


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="journalctl", allow_abbrev=False)
    parser.add_argument("-u", "--unit", required=True)
    parser.add_argument("-n", "--lines", type=int)
    parser.add_argument("-f", "--follow", action="store_true")
    parser.add_argument("-o", "--output")
    for name in ("--no-pager", "-q", "-e", "-b"):
        parser.add_argument(name, action="store_true")
    given = parser.parse_args(list(argv))
    machine = this_machine()
    log = units.log_file(machine, units.unit_name(given.unit))
    if not log.exists():
        print("-- No entries --")
        return 0
    with log.open(encoding="utf-8", errors="replace") as file:
        text = file.readlines()
        lines = 10 if given.follow and given.lines is None else given.lines
        sys.stdout.writelines(text if lines is None else text[-lines:] if lines else ())
        while given.follow:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            time.sleep(0.1)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
