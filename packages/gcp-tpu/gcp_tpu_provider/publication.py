"""Public names of the Pulumi package: repository, SDKs, and the place of its releases. The schema carries them into every SDK."""

from typing import Any, Final

REPOSITORY: Final = "owner--unset/gemma-serving"
"""GitHub repository of the releases, OWNER/NAME. docs/authors/releasing.md has the command that sets it.

SDKs download the plugin from this repository, so the owner of that account can run code on a user's machine. `owner--unset` can never
be an account, because GitHub allows no two hyphens in a row.

Pulumi's registry lists a package only from a repository with its name, here `gcp-tpu` or `pulumi-gcp-tpu`, and takes its pages from `docs/`
of that repository (pulumi/registry, resourcedocsgen, `metadata from-github`).
"""

PUBLISHER: Final = REPOSITORY.partition("/")[0]
HOMEPAGE: Final = f"https://github.com/{REPOSITORY}"
PLUGIN_DOWNLOAD_URL: Final = f"github://api.github.com/{REPOSITORY}"
"""Base of the plugin's archives: `pulumi-resource-gcp-tpu-vVERSION-OS-ARCH.tar.gz` of the release vVERSION (pulumi/sdk, workspace/plugins.go)."""

KEYWORDS: Final = ("pulumi", "google-cloud", "tpu", "queued-resource", "flex-start", "category/cloud", "kind/native")
"""`category/` and `kind/` are the registry's (pulumi/pkg, codegen/schema/schema.go)."""

PYTHON_PACKAGE: Final = "pulumi_gcp_tpu"
NPM_PACKAGE: Final = "@gemma-serving/gcp-tpu"
GO_IMPORT_PATH: Final = f"github.com/{REPOSITORY}/sdk/go/gcptpu"

LANGUAGES: Final[dict[str, dict[str, Any]]] = {
    # The namespace names C#'s class in generated documentation.
    "csharp": {"namespaces": {"gcp-tpu": "GcpTpu"}, "respectSchemaVersion": True},
    "go": {
        "importBasePath": GO_IMPORT_PATH,
        "generateResourceContainerTypes": True,
        "respectSchemaVersion": True,
    },
    "nodejs": {"packageName": NPM_PACKAGE, "respectSchemaVersion": True},
    "python": {
        "packageName": PYTHON_PACKAGE,
        "pyproject": {"enabled": True},
        "pythonRequires": ">=3.11",
        "requires": {"pulumi": ">=3.272.0,<4.0.0"},
        "respectSchemaVersion": True,
    },
}
"""`language` of the schema. With `respectSchemaVersion` an SDK has the version of its plugin and requests that version."""
