"""`journalctl -u UNIT [-n N] [-f]` on a simulated machine."""

import argparse
import sys
import time
from collections.abc import Sequence

from localcloud.running.shims import units
from localcloud.running.shims.machine import tail, this_machine
from localcloud.running.shims.options import add_options


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="journalctl", allow_abbrev=False)
    parser.add_argument("-u", "--unit", required=True)
    parser.add_argument("-n", "--lines", type=int)
    add_options(parser, flags="-f|--follow --no-pager -q -e -b", values="-o|--output")
    given = parser.parse_args(list(argv))
    machine = this_machine()
    log = units.log_file(machine, units.unit_name(given.unit))
    if not log.exists():
        print("-- No entries --")
        return 0
    with log.open(encoding="utf-8", errors="replace") as file:
        text = file.readlines()
        lines = 10 if given.follow and given.lines is None else given.lines
        sys.stdout.writelines(tail(text, lines))
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
