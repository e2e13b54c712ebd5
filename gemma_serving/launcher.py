"""The command `gemma`: of an installation, and of the script of a checkout."""

import signal
import sys


def main() -> int:
    """Run `gemma` and return the exit code. Ctrl-C while Python imports stops it as any other program, without a traceback."""
    caught = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN if caught == signal.SIG_IGN else signal.SIG_DFL)
    from gemma_serving.scripts.gemma.__main__ import main as run  # noqa: PLC0415 - after the signal

    signal.signal(signal.SIGINT, caught)
    return run()


if __name__ == "__main__":
    sys.exit(main())
