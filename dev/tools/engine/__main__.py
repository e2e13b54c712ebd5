"""`python -m dev.tools.engine`: find or create a Pulumi engine and link it into the virtual environment."""

import argparse
import json
import sys
import time

from dev.tools.engine.model import EngineError, Source
from dev.tools.engine.setup import ensure, installed, link

_TAKEN = {
    Source.PATH: "found on PATH",
    Source.RELEASE: "the official release",
    Source.BUILD: "built from source",
}
"""Source of the engine, for display."""


def main(arguments: list[str] | None = None) -> int:
    """Run the set-up. Exit codes: 0 done, 1 no engine, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m dev.tools.engine", description=__doc__)
    parser.add_argument(
        "--source",
        choices=[source.value for source in Source],
        action="append",
        help="Allow only this source. Can be repeated.",
    )
    parser.add_argument("--no-install", action="store_true", help="Link the engine of an earlier set-up, or fail.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    options = parser.parse_args(arguments)
    allowed = tuple(Source(name) for name in options.source) if options.source else tuple(Source)
    started_s = time.monotonic()
    try:
        engine = installed() if options.no_install else ensure(allowed)
        changed = link(engine)
    except EngineError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("engine: interrupted. Run `make setup` again to continue.", file=sys.stderr)
        return 130
    elapsed_s = time.monotonic() - started_s
    host = "its own Python language host" if engine.language_exec is None else "the Python language host stand-in"
    if options.json:
        facts = {
            "executable": str(engine.executable),
            "version": engine.version,
            "source": engine.source.value,
            "changed": changed,
            "languageHost": "own" if engine.language_exec is None else "stand-in",
        }
        print(json.dumps(facts))
    else:
        done = "ready" if changed else "nothing to do"
        print(f"engine: {done}: Pulumi {engine.version}, {_TAKEN[engine.source]}, with {host} ({elapsed_s:.1f} s)")
        if changed:
            print(f"engine: .venv/bin/pulumi starts {engine.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
