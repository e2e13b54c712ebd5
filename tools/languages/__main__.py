"""`python -m tools.languages`: build the generator of SDKs and the YAML language host, and link the host beside engines that were built here."""

import argparse
import json
import sys
import time

from tools.languages.programs import GENERATOR, YAML_HOST, LanguagesError, add_to_engines, ensure


def main(arguments: list[str] | None = None) -> int:
    """Build the programs. Exit codes: 0 done, 1 not built, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tools.languages", description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    try:
        folder = ensure()
        links = add_to_engines()
    except LanguagesError as error:
        print(f"languages: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("languages: interrupted. Run the command again to continue.", file=sys.stderr)
        return 130
    if options.json:
        facts = {
            "generator": str(folder / GENERATOR),
            "yamlHost": str(folder / YAML_HOST),
            "links": [str(link) for link in links],
        }
        print(json.dumps(facts))
        return 0
    print(f"languages: ready: {folder} ({time.monotonic() - started_s:.1f} s)")
    for link in links:
        print(f"languages: linked {link}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
