"""The generated resources of Google send the engine what the provider's own SDK sends it."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pulumi
import pulumi_gcp
import pytest
from pulumi.runtime import mocks
from pulumi.runtime.settings import set_root_resource

from authors.gcp_resources import FOLDER, used
from components import gcp
from components.gcp.resource import PROVIDER_VERSION
from components.model_bucket import ModelBucket, ModelBucketArgs
from components.private_network import PrivateNetwork, PrivateNetworkArgs
from stacks.program import run
from tests.stacks.test_program import configured

__all__ = ["configured"]  # a fixture

ROOT = Path(__file__).resolve().parents[2]
HUB = {"username": "me", "tokenSecret": "projects/my-project/secrets/hub/versions/3"}
TOLD = {"email": "a@example.com", "webhook": "https://alerts.example.com/x"}
PROGRAMS = {
    "tpu-v6e1": {"tpu__tunnelMembers": ["user:alice@example.com"], "apiKey": "canary-0123456789", "dockerHub": HUB},
    "tpu-v6e4": {"alerts": TOLD, "metrics": {"enabled": True}},
    "l4-12b-qat": {
        "apiKey": "canary-0123456789",
        "cloudRun__invokers": ["user:alice@example.com"],
        "cloudRun__directVpc": True,
        "cloudRun__compileCache": "bucket",
    },
    "l4-qat": {"cloudRun__mount": {"mode": "memory"}, "labels": {"team_x": "ml"}},
}
HANDWRITTEN = {"__init__", "provider", "resource"}
PLACES = ("sourcePosition", "stackTrace", "parentStackTraceHandle")
"""Where in its file a resource was declared."""


def with_sdk(monkeypatch):
    """Let components and stacks declare the classes of the SDK."""

    def provider(name, **settings):
        return pulumi_gcp.Provider(name, user_project_override=True, **settings)

    modules = {module: getattr(pulumi_gcp, module) for module in used()}
    sdk = SimpleNamespace(Provider=provider, **modules)
    for room in ("components", "stacks"):
        for path in (ROOT / room).rglob("*.py"):
            if FOLDER not in path.as_posix() and "import gcp\n" in path.read_text():
                module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                monkeypatch.setattr(f"{module}.gcp", sdk)


def _sets(request):
    """Return the lists of a registration whose order is that of a set in the SDK."""
    if hasattr(request, "propertyDependencies"):
        yield request.dependencies
        yield from (each.urns for each in request.propertyDependencies.values())


@pytest.fixture
def sent(declare, monkeypatch):
    """Run a program and return the requests that the engine got, by type and name."""
    monkeypatch.setattr("stacks.base.token_hex", lambda count: "ab" * count)
    whole = mocks.MockMonitor.RegisterResource

    def of(program):
        requests = {}

        def note(key, request):
            plain = type(request)()
            plain.CopyFrom(request)
            for place in PLACES:
                plain.ClearField(place)
            for listed in _sets(plain):
                listed.sort()
            assert key not in requests
            requests[key] = plain

        def register(self, request):
            note((request.type, request.name), request)
            return whole(self, request)

        monkeypatch.setattr(mocks.MockMonitor, "RegisterResource", register)
        set_root_resource(None)  # the tests of one process would share it, with its transformations
        declare(program)
        return requests

    return of


def parts():
    """What no stack of the repository declares: NAT, egress rules, an archive's folder."""
    from contracts.labels import Ownership  # noqa: PLC0415

    ownership = Ownership(project="gemma-serving", stack="x")
    where = {"project": "my-project", "name": "x", "ownership": ownership}
    network = {"regions": ["us-east5"], "target_tag": "x", "internet_egress": True, "allow_iap": True}
    PrivateNetwork("network", PrivateNetworkArgs(**where, **network, egress_ports=("443", "80")))
    members = {"server": "serviceAccount:a@my-project.iam.gserviceaccount.com"}
    bucket = {
        "location": "us-east5",
        "readers": members,
        "archivers": members,
        "archive_days": 7,
        "labels": {"a_b": "c"},
    }
    return ModelBucket("models", ModelBucketArgs(**where, **bucket, retain=True)).bucket


def compared(sent, program):
    """Compare what a program sends with both kinds of classes, and return the types that it declared."""
    ours = sent(program)
    with pytest.MonkeyPatch.context() as patch:
        with_sdk(patch)
        theirs = sent(program)
    assert ours.keys() == theirs.keys()
    for key, request in theirs.items():
        assert ours[key] == request, f"{key}: {ours[key]} instead of {request}"
    return {type_ for type_, _ in ours}


def test_every_request_is_that_of_the_sdk_and_no_class_is_left_out(sent, configured, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-east5-a")
    types = compared(sent, parts)
    for stack, changes in PROGRAMS.items():
        configured(stack, **changes)
        monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", '["gemma-serving:apiKey"]')
        types |= compared(sent, run)
    generated = {
        f"gcp:{module}/{name[0].lower()}{name[1:]}:{name}"
        for module, names in used().items()
        for name in names
        if not name.endswith("Args")
    }
    assert generated <= types
    assert "pulumi:providers:gcp" in types


def test_an_output_has_the_name_that_the_sdk_gives_it(declare):
    def program():
        secret = gcp.secretmanager.SecretVersion(
            "token", gcp.secretmanager.SecretVersionArgs(secret="projects/p/secrets/s", secret_data="x")
        )
        return pulumi.Output.all(secret.name, secret.secret, secret.version)

    _, resolved = declare(program)
    assert resolved == ["projects/p/secrets/s/versions/1", "projects/p/secrets/s", "1"]


def test_the_classes_are_those_of_the_installed_provider():
    assert version("pulumi-gcp") == PROVIDER_VERSION
    made = {path.stem: path.read_text() for path in (ROOT / FOLDER).glob("*.py") if path.stem not in HANDWRITTEN}
    assert made.keys() == used().keys()
    assert all(f"from pulumi-gcp {PROVIDER_VERSION}," in text for text in made.values())


def test_no_module_of_the_sdk_is_loaded_by_a_program():
    for path in [*(ROOT / "components").rglob("*.py"), *(ROOT / "stacks").rglob("*.py")]:
        assert "import pulumi_gcp" not in path.read_text(), path
