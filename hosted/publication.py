"""Public names of the package: repository, SDKs, and the place of its releases. The schema carries them into every SDK."""

from collections.abc import Mapping
from typing import Any, Final

REPOSITORY: Final = "owner--unset/gemma-serving"
"""GitHub repository of the releases, as in gcp_tpu_provider.publication, which says why. `python -m authors.release owner OWNER/NAME` sets it."""
PLUGIN_DOWNLOAD_URL: Final = f"github://api.github.com/{REPOSITORY}"
"""Place of the archives of both plugins."""


def published() -> Mapping[str, Any]:
    """Return the parts of the schema that an inferred one lacks."""
    home = f"https://github.com/{REPOSITORY}"
    return {
        "displayName": "Gemma serving",
        "description": "Gemma 4 behind vLLM on TPUs and Cloud Run GPUs, planned before it is deployed.",
        "license": "Apache-2.0",
        "publisher": REPOSITORY.partition("/")[0],
        "homepage": home,
        "repository": home,
        "keywords": ["pulumi", "google-cloud", "tpu", "vllm", "gemma", "category/cloud", "kind/component"],
        "pluginDownloadURL": PLUGIN_DOWNLOAD_URL,
        "language": {
            "csharp": {"namespaces": {"gemma-serving": "GemmaServing"}, "respectSchemaVersion": True},
            "go": {
                "importBasePath": f"github.com/{REPOSITORY}/sdk/go/gemmaserving",
                "generateResourceContainerTypes": True,
                "respectSchemaVersion": True,
            },
            "nodejs": {"packageName": "@gemma-serving/gemma-serving", "respectSchemaVersion": True},
            "python": {
                "packageName": "pulumi_gemma_serving",
                "pyproject": {"enabled": True},
                "pythonRequires": ">=3.11",
                "requires": {"pulumi": ">=3.272.0,<4.0.0"},
                "respectSchemaVersion": True,
            },
        },
    }
