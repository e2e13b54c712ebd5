"""Pages of the local cloud list the modeled methods and the environment variables."""

import re
from pathlib import Path

from localcloud import environment, services

AUTHORS = Path(__file__).resolve().parents[2] / "docs" / "authors"
METHODS = AUTHORS / "local-cloud-methods.md"
INTERNALS = AUTHORS / "local-cloud-internals.md"


def methods_table(cloud):
    """One line a resource: `API resource` and its methods."""
    lines = {}
    for method_id in sorted(services.handlers(cloud)):
        resource, _, verb = method_id.rpartition(".")
        lines.setdefault(resource, []).append(verb)
    return "\n".join(f"| `{resource}` | {', '.join(verbs)} |" for resource, verbs in lines.items())


def test_the_page_lists_every_modelled_method(shared_cloud):
    wanted = methods_table(shared_cloud.cloud)
    found = re.search(
        r"<!-- methods -->\n\| resource \| methods \|\n\| --- \| --- \|\n(.*?)\n<!-- /methods -->",
        METHODS.read_text(),
        re.DOTALL,
    )
    assert found is not None
    assert found[1] == wanted, f"put this between the marks in {METHODS.name}:\n{wanted}"


def test_the_page_names_every_variable():
    text = INTERNALS.read_text()
    values = environment.variables(
        base_url="http://127.0.0.1:1",
        state=Path("/s"),
        project="p",
        speed=200,
        access_token="t",
        operator_token="t",
        credentials=Path("/c"),
        commands=Path("/b"),
        debug_providers="gcp:1",
        inherited={},
    )
    missing = [name for name in values if name not in text and not name.startswith("CLOUDSDK_")]
    assert missing == []
    assert all(f"`{name.lower()}`" in text for name in environment.API_OVERRIDES)
