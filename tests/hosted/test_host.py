"""The plugin of the components: its schema, its errors, and the resources of two servers in one program."""

import json
import subprocess
import sys
from pathlib import Path

from gcp_tpu_provider import publication as provider_publication
from hosted import VERSION, publication
from hosted.kinds import KINDS

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "hosted/schema.json").read_text())


def test_the_committed_schema_is_that_of_the_components():
    assert printed("-m", "hosted.host") == (ROOT / "hosted/schema.json").read_text(), "run: make docs"


def test_both_packages_come_from_one_release():
    provider = json.loads((ROOT / "packages/gcp-tpu/schema.json").read_text())
    assert publication.REPOSITORY == provider_publication.REPOSITORY
    shared = ("version", "publisher", "repository", "pluginDownloadURL", "license")
    assert {key: SCHEMA[key] for key in shared} == {key: provider[key] for key in shared}
    assert SCHEMA["version"] == VERSION


def test_every_input_has_a_settings_key_or_a_purpose_of_its_own():
    for kind in KINDS:
        resource = SCHEMA["resources"][f"gemma-serving:index:{kind.name}"]
        assert {*resource["inputProperties"]} - {*kind.keys} == {"project", "settings", "hfToken", "apiKey"}
        assert {*kind.keys} <= {*resource["inputProperties"]}
        secret = {name for name, each in resource["inputProperties"].items() if each.get("secret")}
        assert secret == {"hfToken", "apiKey"}
        assert "    " not in resource["description"]


CONSTRUCT = """
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError

from hosted.host import ServerProvider
from hosted.server import RefusedError


def raised(inner):
    def fail(*_):
        raise ComponentInitError(inner)

    ComponentProvider.construct = fail
    try:
        ServerProvider().construct("chat", "gemma-serving:index:TpuServer", {}, None)
    except Exception as error:
        return type(error).__name__, getattr(error, "message", None), getattr(error, "errors", None)


print([raised(RefusedError("one sentence.")), raised(KeyError("x"))])
"""


def test_a_refusal_is_reported_without_a_traceback_and_an_error_of_ours_with_one():
    """The SDK's status needs a list of properties, even an empty one."""
    assert printed("-c", CONSTRUCT) == (
        "[('InputPropertiesError', 'one sentence.', []), ('ComponentInitError', None, None)]\n"
    )


def printed(*arguments):
    """Run Python in a process of its own: the host loads another copy of Google's status messages than the provider does."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
