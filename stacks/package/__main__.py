"""The plugin: `python components` starts it from a checkout, `pulumi-resource-gemma-serving` from an installed wheel."""

import sys

from pulumi.provider import main as serve

from gemma_serving.stacks.package.provider import PackageProvider


def main() -> None:
    """Serve the package until the engine ends the process."""
    serve(PackageProvider(), sys.argv[1:])


if __name__ == "__main__":
    main()
