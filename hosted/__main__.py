"""Entry point of the plugin: `python hosted` in a checkout; the archive of a release calls `main`."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]


def main() -> None:
    """Serve the components. Exits with one sentence if a package is missing."""
    sys.path.insert(0, str(FOLDER))
    try:
        from hosted.host import serve  # noqa: PLC0415 - found through the line above
    except ModuleNotFoundError as error:
        print(
            f"pulumi-resource-gemma-serving: {sys.executable} cannot import {error.name}. {_remedy()}", file=sys.stderr
        )
        sys.exit(1)
    serve()


def _remedy() -> str:
    """Return the sentence that completes the installation: of a checkout, or of an installed plugin."""
    if (FOLDER / "Makefile").is_file():
        return f"Run `make setup` in {FOLDER}."
    from hosted import VERSION  # noqa: PLC0415 - found through the path that main sets

    return f"Run `pulumi plugin install resource gemma-serving {VERSION} --reinstall --file ARCHIVE` with the archive of the release."


if __name__ == "__main__":
    main()
