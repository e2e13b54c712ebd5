"""`python -m localcloud.rules`: build the evaluator of alerts if necessary, and print its path."""

import sys
import time

from localcloud.rules.program import EvaluatorMissingError, ensure


def main() -> int:
    """Build the evaluator. Exit codes: 0 done, 1 no evaluator, 130 interrupted."""
    started_s = time.monotonic()
    try:
        path = ensure()
    except EvaluatorMissingError as error:
        print(f"rules: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rules: interrupted. Run the command again to continue.", file=sys.stderr)
        return 130
    size_mb = path.stat().st_size / 1e6
    print(f"rules: {path} ({size_mb:.0f} MB, {time.monotonic() - started_s:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
