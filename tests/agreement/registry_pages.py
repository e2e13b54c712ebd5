"""The pages of the provider in Pulumi's registry, and their samples."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "packages" / "gcp-tpu" / "docs"
INDEX = DOCS / "_index.md"
INSTALLATION = DOCS / "installation-configuration.md"
LANGUAGES = ("python", "yaml")


def samples() -> dict[str, str]:
    """Return the program of each language in the overview's chooser."""
    choosable = re.compile(
        r"^{{% choosable language (?P<language>\w+) %}}$.*?^```(?P=language)\n(?P<code>.*?)^```$.*?^{{% /choosable %}}$",
        re.DOTALL | re.MULTILINE,
    )
    return {found["language"]: found["code"] for found in choosable.finditer(INDEX.read_text())}
