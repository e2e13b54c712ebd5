"""SECURITY.md names each role that a stack grants, and no other: what the program declares against mocks is compared with its tables."""

import json
import re
from dataclasses import dataclass
from itertools import product

import pytest

from gemma_serving.contracts.labels import ALWAYS
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.scripts.gemma.catalog import ENTRIES
from gemma_serving.stacks.loading import from_values
from tests.security_page import rows
from tests.stacks.conftest import ROOT, changed

STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
PROJECT = "my-project"
MEMBER, INVOKER = "user:alice@example.com", "group:callers@example.com"
SECRET = f"projects/{PROJECT}/secrets/theirs/versions/7"
NETWORK = {"network": "shared", "subnetwork": "shared", "privateGoogleAccess": True}
TUNNEL = {"tpu.tunnelMembers": [MEMBER]}
WATCHED = {"metrics.enabled": True, "alerts.email": "a@example.com"}

SCOPES = {
    "gcp:projects/iAMMember:IAMMember": "project",
    "gcp:secretmanager/secretIamMember:SecretIamMember": "secret",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "bucket",
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": "repository",
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": "service",
    "gcp:serviceaccount/iAMMember:IAMMember": "server's account",
}
"""What each type of grant is about. A grant of a type that is not here fails."""
MEMBERS = {
    MEMBER: "tunnel member",
    INVOKER: "invoker",
    "allUsers": "the public",
    "serviceAccount:service-1@gcp-sa-artifactregistry.iam.gserviceaccount.com": "Artifact Registry",
}


@dataclass(frozen=True, order=True)
class Grant:
    """A row of the page: the role without `roles/`, who has it, on what, and its condition."""

    role: str
    to: str
    on: str
    condition: str


@dataclass(frozen=True)
class Case:
    """Settings of a stack. The page's rows of a case are what it grants beyond `beyond`, another set of settings of the same stack."""

    stack: str
    settings: dict
    beyond: dict


ON_MACHINE = {"tpu.compileCache": "machine"}

CASES = {
    "`weights: bucket`": Case("tpu-v6e1", {"weights": "bucket", **ON_MACHINE}, ON_MACHINE),
    "`compileCache: bucket`": Case("tpu-v6e1", {}, ON_MACHINE),
    "`hfToken`, `apiKey`": Case("tpu-v6e1", {"apiKey": "canary-0123456789", **ON_MACHINE}, ON_MACHINE),
    "`dockerHub`": Case("l4-qat", {"dockerHub": {"username": "someone", "tokenSecret": SECRET}}, {}),
    "`cloudRun.invokers`": Case("l4-qat", {"cloudRun.invokers": [INVOKER]}, {}),
    "`cloudRun.public`": Case("l4-qat", {"cloudRun.public": True, "acceptFindings": ["SEC02"]}, {}),
    "`metrics.enabled`": Case("l4-qat-002", WATCHED, {}),
    "`tpu.tunnelMembers`": Case("tpu-v6e1", TUNNEL, {}),
    "`tpu.tunnelRole`": Case("tpu-v6e1", {**TUNNEL, "tpu.tunnelRole": "gemmaTunnel"}, TUNNEL),
    "`tpu.ssh: metadata-key`": Case("tpu-v6e1", {**TUNNEL, "tpu.ssh": "metadata-key"}, TUNNEL),
    "`metadata-key` on Compute Engine": Case(
        "tpu-v6e1",
        {**TUNNEL, "tpu.api": "compute-engine", "tpu.ssh": "metadata-key"},
        {**TUNNEL, "tpu.api": "compute-engine"},
    ),
}
"""Causes in the last column of the page, and the settings of those grants."""
OTHERS = (
    ("tpu-v6e1", {"hfTokenSecret": SECRET, "apiKeySecret": SECRET}),
    ("tpu-v6e1", {**TUNNEL, "tpu.api": "compute-engine"}),
    ("tpu-v6e1", {"tpu.existingNetwork": NETWORK, "tpu.zones": ["us-east5-a"]}),
    ("tpu-v6e1", {"tpu.maxRunDuration": "24h", "maxAge": "8h", "maxUsd": 50}),
    ("tpu-v6e1", {"weights": "bucket", "bucket.existing": "their-models"}),
    ("l4-qat", {"cloudRun.directVpc": True, "cloudRun.compileCache": "bucket"}),
    ("l4-qat", {"cloudRun.ingress": "internal"}),
    ("tpu-v6e1", WATCHED),
    ("l4-qat", {"alerts.webhook": "https://alerts.example.com/x"}),
)
"""Settings that grant nothing that the page's other rows do not name."""


_KNOWN = {}
"""What the program declared for some settings: nothing changes it, and the tests of this file share it."""


@pytest.fixture
def resources(declared):
    """Return what a stack declares with changed settings."""

    def of(stack, settings):
        key = (stack, json.dumps(settings, sort_keys=True))
        if key not in _KNOWN:
            changes = {path.replace(".", "__"): value for path, value in settings.items()}
            _KNOWN[key] = declared(stack, **changes).declared
        return _KNOWN[key]

    return of


@pytest.fixture
def granted(resources):
    """Return the grants of a stack with changed settings."""
    return lambda *given: {grant for each in resources(*given) if (grant := as_row(each)) is not None}


def as_row(declared):
    """Return a grant as the page has it; None for a resource that grants nothing."""
    inputs = declared.inputs
    if not re.search("iam", declared.type, re.IGNORECASE) or "role" not in inputs:
        assert not re.search(r"iam(member|binding|policy)|customrole", declared.type, re.IGNORECASE), declared.type
        return None
    role, member = inputs["role"], inputs["member"]
    expression = (inputs.get("condition") or {}).get("expression", "none")
    folder = re.fullmatch(r'resource\.name\.startsWith\("projects/_/buckets/[^/]+/objects/([^/]+)/"\)', expression)
    named = f"`{role.removeprefix('roles/')}`" if role.startswith("roles/") else "the custom role"
    server = f"serviceAccount:gemma-.*@{PROJECT}.iam.gserviceaccount.com"
    to = "server" if re.fullmatch(server, member) else MEMBERS[member]
    shown = {"none": "none", ALWAYS: "always true"}.get(expression) or (
        f"folder `{folder[1]}/`" if folder else f"`{expression}`"
    )
    return Grant(named, to, SCOPES[declared.type], shown)


def listed():
    """Return the page's grants by what causes them."""
    found = {}
    for role, to, on, condition, cause in rows("Roles that a stack grants"):
        found.setdefault(cause, set()).add(Grant(role, to, on, condition))
    return found


def test_the_page_names_each_role_that_a_stack_grants_and_no_other(granted, subtests):
    page = listed()
    as_written = {stack: granted(stack, ON_MACHINE if stack.startswith("tpu") else {}) for stack in STACKS}
    every = set.intersection(*as_written.values())
    on_tpu = set.intersection(*(found for stack, found in as_written.items() if stack.startswith("tpu"))) - every
    computed = {"every stack": every, "TPU": on_tpu}
    computed |= {
        cause: granted(case.stack, case.settings) - granted(case.stack, case.beyond) for cause, case in CASES.items()
    }
    for cause in {*page, *computed}:
        with subtests.test(cause):
            assert sorted(page.get(cause, ())) == sorted(computed.get(cause, ()))
    known = set().union(*page.values())
    for stack, settings in [*((stack, {}) for stack in STACKS), *OTHERS]:
        with subtests.test(f"{stack} {settings}"):
            assert granted(stack, settings) - known == set()


DEFAULT = "the default with `minInstances: 0` and weights in the stack's own bucket"
"""When a Cloud Run service archives programs although its file does not say so."""


@pytest.mark.parametrize("page", ["SECURITY.md", "dev/docs/signed-archives.md", "docs/cloud-run.md"])
def test_the_pages_say_when_programs_are_archived_by_default(page):
    assert DEFAULT in (ROOT / page).read_text()
    for least, weights, bucket in product((0, 1), ("bucket", "hub"), ({}, {"existing": "theirs"})):
        changes = {"cloudRun.minInstances": least, "weights": weights, "bucket": bucket}
        settings = from_values(changed("l4-12b-qat", changes), project=PROJECT, origin="Pulumi.x.yaml")
        assert settings.archives_programs == (least == 0 and weights == "bucket" and not bucket)


ON_TPU = "the default with flex-start, spot or `maxRunDuration` and without `bucket.existing`"
"""The same for a TPU VM."""


@pytest.mark.parametrize("page", ["SECURITY.md", "dev/docs/signed-archives.md", "docs/tpu-advanced.md"])
def test_the_pages_say_when_a_tpu_vm_archives_programs_by_default(page):
    assert ON_TPU in (ROOT / page).read_text()
    forms = {"flex-start": True, "spot": True, "standard": False}
    for (form, ends), limit, bucket in product(forms.items(), (None, "2h"), ({}, {"existing": "theirs"})):
        changes = {"tpu.provisioning": form, "tpu.maxRunDuration": limit, "bucket": bucket}
        settings = from_values(changed("tpu-v6e1", changes), project=PROJECT, origin="Pulumi.x.yaml")
        assert settings.archives_programs == ((ends or limit is not None) and not bucket)


LISTENS = {
    "TPU": ("tpu-v6e1", {}),
    "`tpu.existingNetwork`": ("tpu-v6e1", {"tpu.existingNetwork": NETWORK, "tpu.zones": ["us-east5-a"]}),
    "Cloud Run": ("l4-qat", {}),
}
"""Rows of the listening ports, and settings of each."""


def listens(found):
    """Return the address of the server and the connections that rules allow, as the page has them."""
    ports = {
        f"port {port} from {source}"
        for each in found
        if each.type == "gcp:compute/firewall:Firewall" and each.inputs["direction"] == "INGRESS"
        for allow in each.inputs["allows"]
        for port in allow["ports"]
        for source in each.inputs["sourceRanges"]
    }
    hosts = {
        f"{host}:{port}"
        for each in found
        for host, port in re.findall(r"--host=([\d.]+).*?--port=(\d+)", json.dumps(each.inputs))
    }
    (address,) = hosts
    return address, ", ".join(sorted(ports)) or "none"


def test_the_page_says_where_each_server_listens_and_what_its_rules_allow(resources, subtests):
    page = {cause: tuple(cells) for cause, *cells in rows("Listening ports")}
    assert set(page) == set(LISTENS)
    for cause, (stack, settings) in LISTENS.items():
        with subtests.test(cause):
            assert page[cause] == listens(resources(stack, settings))
    for stack in STACKS:
        with subtests.test(stack):
            assert listens(resources(stack, {})) in page.values()


OTHERS_THAN_COMMANDS = {
    "`gemma` without words",
    "`localcloud`",
    "`examples/one-evening.sh`",
    "package, component",
    "GKE",
}
"""Programs and targets that are not a word after `gemma`."""


def test_the_page_has_one_row_for_each_command_and_target():
    table = rows("Commands and targets", level=3)
    named = [name for first, *_ in table if first not in OTHERS_THAN_COMMANDS for name in re.findall(r"`(\w+)`", first)]
    assert sorted(named) == sorted(ENTRIES)
    assert {first for first, *_ in table} >= OTHERS_THAN_COMMANDS
    assert all(effect and protection for _, effect, protection in table)
