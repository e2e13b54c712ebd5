"""The plugin of the components: its schema, its errors, and the resources of two servers in one program."""

import json
from pathlib import Path

import pytest
from pulumi.errors import InputPropertiesError
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError

from gcp_tpu_provider import publication as provider_publication
from hosted import VERSION, publication
from hosted.host import ServerProvider
from hosted.kinds import KINDS
from hosted.server import RefusedError

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "hosted/schema.json").read_text())


def test_the_committed_schema_is_that_of_the_components():
    assert ServerProvider().schema == (ROOT / "hosted/schema.json").read_text(), "run: make docs"


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


@pytest.mark.parametrize(
    ("inner", "raised"), [(RefusedError("one sentence."), InputPropertiesError), (KeyError("x"), ComponentInitError)]
)
def test_a_refusal_is_told_without_a_traceback_and_an_error_of_ours_with_one(monkeypatch, inner, raised):
    def fail(*_):
        raise ComponentInitError(inner)

    monkeypatch.setattr(ComponentProvider, "construct", fail)
    with pytest.raises(raised) as caught:
        ServerProvider().construct("chat", "gemma-serving:index:TpuServer", {}, None)
    if raised is InputPropertiesError:
        assert caught.value.message == "one sentence."
        assert caught.value.errors == [], "the SDK's status needs a list"
