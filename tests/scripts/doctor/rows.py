"""What the doctor says of each check in a world that steps change: tables, and the steps that only they need."""

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import quote

import requests
from huggingface_hub import HfApi

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.engine import runner
from gemma_serving.scripts.doctor import model, permissions
from gemma_serving.scripts.doctor.permissions import permissions_of
from gemma_serving.scripts.stack.settings import stack_settings
from localcloud.tests.services.test_run_rules import GPU
from localcloud.world.scenario import ComputeTpu, Fault, Hub, Images, Run, Tpu
from tests.scripts.doctor.conftest import CANARY, PROJECT, RUN, TPU

MODEL, COMMIT, OLDER, NONE = (
    "google/gemma-4-E2B-it",
    "3e22461f65e89153144f8adb70e3b8c2cc9845a7",
    "905e84b50c4d2a365ebde34e685027578e6728db",
    "0" * 40,
)
RTX = "rtx6000-31b"
EXEMPT = json.dumps({"constraint": "constraints/gcp.restrictNonCmekServices", "restoreDefault": {}})
POLICIES = "gcloud resource-manager org-policies"
ROLES = f"/iam/v1/projects/{PROJECT}/roles"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
TOKEN, ACCOUNT = (f"projects/{PROJECT}/secrets/{name}/versions/1" for name in ("their-token", "docker-hub"))
KEY = f"projects/{PROJECT}/locations/us/keyRings/r/cryptoKeys/k"
NEW_KEY = (
    f"gcloud kms keyrings create r --project={PROJECT} --location=us",
    f"gcloud kms keys create k --project={PROJECT} --location=us --keyring=r --purpose=encryption",
)
"""As in docs/ci.md."""
IN_REGISTRY = {"repository": "us-docker.pkg.dev/vertex-ai/servers/vllm", "digest": f"sha256:{'a' * 64}"}
FOLDER = "models/ours/"
STATE = "my-pulumi-state"
NO_BUCKET = (
    "error: error listing stacks: could not list bucket: blob (code=NotFound): storage: bucket doesn't exist: "
    "googleapi: Error 404: The specified bucket does not exist., notFound"
)
"""Pulumi 3.256.0, `pulumi whoami` and `pulumi login` with a bucket that Cloud Storage answers with 404; recorded 2026-11-23."""

# Steps: each is a change of the world


def settings(*changes, stack):
    """Replace parts of a stack's settings file."""
    return lambda world: world.write(stack, *changes)


def below(key, *lines, stack):
    """Add lines below a key of the settings file, or below `config:`, which is its first."""
    return settings((f"{key}\n", "\n".join([key, *lines]) + "\n"), stack=stack)


def off(api):
    return lambda world: world.disable(api)


def on(api):
    path = f"/serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable"
    return lambda world: world.admin("POST", path, {})


def scenario(**changes):
    return lambda world: world.scenario(**changes)


def fails(method, status):
    """Let Google answer each call of a method with an error."""
    return scenario(faults=(Fault(method=method, count=999, status=status),))


def policy(constraint, **rule):
    return lambda world: world.policy(constraint, **rule)


def caller(name, *roles):
    """Log in as a service account of the project with these roles."""

    def log_in(world):
        world.service_account(name)
        email = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        for role in roles:
            world.grant(role, f"serviceAccount:{email}")
        world.log_in_as(email)

    return log_in


def without_roles(*lacking):
    """Log in as an account that has each other role of the TPU stack."""

    def log_in(world):
        needed = {each.role for each in permissions_of(stack_settings(TPU, project=PROJECT))}
        held = needed - {f"roles/{role}" for role in lacking}
        caller("deployer", "roles/orgpolicy.policyViewer", *sorted(held))(world)

    return log_in


def stranger(world):
    """Log in as an account that the project does not have."""
    world.log_in_as(f"stranger@{PROJECT}.iam.gserviceaccount.com")


def staged(**options):
    """Stage the weights of the Cloud Run stack."""
    return lambda world: world.stage(RUN, **options)


def chips(count, *zones):
    """Give these zones a quota of this many chips and all others none; without zones, each has it."""

    def quota(name):
        left = count if name in zones or not zones else 0
        return {"preemptible_quota_chips": left, "quota_chips": left}

    return scenario(tpu=Tpu(zones={name: zone.model_copy(update=quota(name)) for name, zone in Tpu().zones.items()}))


def without_standard_quota(world):
    """Give each zone the quota of preemptible chips alone."""
    zones = {name: zone.model_copy(update={"quota_chips": 0}) for name, zone in Tpu().zones.items()}
    world.scenario(tpu=Tpu(zones=zones))


def forms(words, *lines):
    """Let the TPU stack request forms of capacity in an order."""
    text = "\n".join([f"    provisioning: [{words}]", *lines]) + "\n"
    return settings(("    provisioning: flex-start\n", text), stack=TPU)


def hub(state, **more):
    """Put the TPU stack's model into a state on the hub."""
    return scenario(hub=Hub(repositories={"google/gemma-4-E2B-it": state}, **more))


def registry_answers(status):
    """Let the registry answer with a status that the local cloud's never has for a manifest's headers."""
    answer = requests.Response()
    answer.status_code = status
    return lambda world: world.environment.setattr(model, "ask_registry", lambda *_: answer)


class Row(NamedTuple):
    """What the doctor says of a check after the steps. In `detail` and `fix`, a `*` stands for any text."""

    stack: str | None
    steps: list
    check: str
    status: str | None
    """None: the report has no such line."""
    detail: str = "*"
    fix: str = ""
    values: dict = {}  # noqa: RUF012 - never changed


def enables(api):
    return f"gcloud services enable {api}.googleapis.com --project={PROJECT}"


def denied(*apis):
    """Let the organization demand the user's own keys for these services."""
    values = [f"is:{one}.googleapis.com" for one in apis]
    return policy("gcp.restrictNonCmekServices", listPolicy={"deniedValues": values})


def enforced(constraint):
    return policy(constraint, booleanPolicy={"enforced": True})


def creator(world):
    """Grant the caller of CI the permissions that create buckets and the like on the whole project."""
    role = {"title": "gemmaCreator", "includedPermissions": sorted(permissions.CREATIONS)}
    world.admin("POST", ROLES, {"roleId": "gemmaCreator", "role": role})
    world.grant(f"projects/{PROJECT}/roles/gemmaCreator", f"serviceAccount:ci-deploy@{PROJECT}.iam.gserviceaccount.com")


def tunnel(role):
    return below(
        "  gemma-serving:tpu:", "    tunnelMembers: ['user:a@example.com']", f"    tunnelRole: {role}", stack=TPU
    )


def tunnel_role(*more):
    """Create the role with what a tunnel needs, and more."""
    needed = ("tpu.nodes.get", "tpu.nodes.update", "tpu.operations.get")
    role = {"title": "t", "includedPermissions": [*needed, *more]}
    return lambda world: world.admin("POST", ROLES, {"roleId": "gemmaTunnel", "role": role})


def theirs(world):
    """Deploy another service, which uses a GPU."""
    world.admin("POST", f"/run/v2/projects/{PROJECT}/locations/us-east4/services?serviceId=theirs", GPU)


def every_network(world):
    """Create networks until the quota is used up."""
    on("compute")(world)
    (line,) = world.lines("quota of networks", RUN)
    limit, _, used, *_ = line["detail"].split()
    for number in range(int(limit) - int(used)):
        body = {"name": f"other-{number}", "autoCreateSubnetworks": False}
        world.admin("POST", f"/compute/compute/v1/projects/{PROJECT}/global/networks", body)


def compute_engine(*lines):
    return below("  gemma-serving:tpu:", "    api: compute-engine", *lines, stack=TPU)


def instances(regions, **more):
    return scenario(tpu=Tpu(compute=ComputeTpu(preemptible_quota_overrides=dict.fromkeys(regions, 0), **more)))


def gcloud(*components, text=""):
    """Install a gcloud with these components, or with another text of the program."""

    def change(world):
        world.gcloud(*components)
        if text:
            (world.folder / "bin" / "gcloud").write_text(f"#!/bin/sh\n{text}exit 1\n")

    return change


def variables(**values):
    """Set environment variables; None removes one."""

    def change(world):
        for name, value in values.items():
            if value is None:
                world.environment.delenv(name, raising=False)
            else:
                world.environment.setenv(name, value)

    return change


def forgotten(world):
    """Log in with a key that Google no longer knows."""
    stranger(world)

    async def forget():
        world.cloud.cloud.store.delete("oauth.keys", f"stranger@{PROJECT}.iam.gserviceaccount.com")

    asyncio.run_coroutine_threadsafe(forget(), world.cloud.loop).result(10)


def unreachable(world):
    """Log in with a key whose tokens come from an address that nothing serves."""
    stranger(world)
    path = world.folder / "key.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "token_uri": "http://127.0.0.1:1/token"}))


def logged_out(world):
    world.engine.logged_in = False


def refuse_to_end(*_arguments, **_options):
    raise ScriptError("`pulumi whoami` timed out after 120 s.")


def hangs(world):
    world.environment.setattr(runner, "run", refuse_to_end)


def lacks_bucket(world):
    """Name a bucket for the states in the environment, as get-started does."""
    world.environment.setenv("PULUMI_BACKEND_URL", f"gs://{STATE}")
    world.engine.logged_in, world.engine.error = False, NO_BUCKET


def secret(version, data=CANARY, verb=""):
    """Store a secret with one version, and disable it if told."""

    def change(world):
        name = version.split("/")[3]
        world.admin("POST", f"{SECRETS}?secretId={name}", {"replication": {"automatic": {}}})
        payload = {"payload": {"data": base64.b64encode(data.encode()).decode()}}
        world.admin("POST", f"{SECRETS}/{name}:addVersion", payload)
        if verb:
            world.admin("POST", f"{SECRETS}/{name}/versions/1:{verb}", {})

    return change


def put(*names, listed=()):
    """Let another tool fill a bucket, with a manifest of the listed files."""

    def change(world):
        on("storage")(world)
        world.admin("POST", f"/storage/storage/v1/b?project={PROJECT}", {"name": "theirs", "location": "us-east4"})
        manifest = {"gemma-serving-manifest.json": {"files": [{"name": one, "size_bytes": 2} for one in listed]}}
        files = {name: {} for name in names} | (manifest if listed else {})
        for name, content in files.items():
            path = f"/upload/storage/v1/b/theirs/o?uploadType=media&name={quote(FOLDER + name, safe='')}"
            world.admin("POST", path, content)

    return change


def nameless(world):
    """Let the hub name no commit."""
    world.environment.setattr(HfApi, "model_info", lambda *_words, **_options: SimpleNamespace(sha=None))


def at_registry(world):
    world.environment.setenv("LOCALCLOUD_URL", world.cloud.base_url)


def listed_image(world):
    image = f"{IN_REGISTRY['repository']}@{IN_REGISTRY['digest']}"
    world.admin("POST", "/admin/images", {"images": [image]})


def key_user(world):
    """Name a key in Cloud KMS, and log in as a reader."""
    world.write(RUN, ("config:\n", f"secretsprovider: gcpkms://{KEY}\nencryptedkey: a21z\nconfig:\n"))
    caller("key-user", "roles/cloudkms.viewer", "roles/serviceusage.serviceUsageConsumer")(world)


def new_key(world):
    for command in NEW_KEY:
        world.follow(command, RUN)


def granted_on_project(world):
    """Grant the caller the use of every key of the project."""
    world.grant(
        "roles/cloudkms.cryptoKeyEncrypterDecrypter", f"serviceAccount:key-user@{PROJECT}.iam.gserviceaccount.com"
    )


def decrypter(world):
    (line,) = world.lines("secrets key", RUN)
    world.follow(line["fix"].replace("EncrypterDecrypter", "Decrypter"), RUN)


NO_CHIPS = chips(0)
PUBLIC = settings(("    region: us-east4\n", "    region: us-east4\n    public: true\n"), stack=RUN)
METADATA_KEY = below("  gemma-serving:tpu:", "    ssh: metadata-key", stack=TPU)
CI = caller("ci-deploy", "roles/serviceusage.serviceUsageConsumer")
READER = caller("deployer", "roles/serviceusage.serviceUsageConsumer")
WITH_TOKEN = below("config:", "  gemma-serving:hfToken: { secure: v1:abc }", stack=TPU)
BY_REFERENCE = below("config:", f"  gemma-serving:hfTokenSecret: {TOKEN}", stack=TPU)
HUB_ACCOUNT = f"  gemma-serving:dockerHub: {{username: someone, tokenSecret: {ACCOUNT}}}"
THEIR_BUCKET = below(
    "  gemma-serving:weights: bucket", f"  gemma-serving:bucket: {{existing: theirs, prefix: '{FOLDER}'}}", stack=RUN
)
IMAGE = below("config:", f"  gemma-serving:image: {json.dumps({**IN_REGISTRY, 'version': '0.31.0'})}", stack=RUN)
MORE_ZONES = ("    zones: [", "    zones: [us-central1-b, ")
NO_LOGIN = "no working gcloud login, which the tunnel to the server needs (*)"
NO_NETWORK = "ERROR: (gcloud.auth.print-access-token) There was a problem refreshing your current auth tokens: Max retries exceeded"
INCREASE = "*gcloud beta quotas preferences create *--preferred-value=*"
CHIPS, OFFER = "quota of chips in us-east5-a", "v6e-4 in us-east5-a"
OF_REGION = "quota of chips in us-east5"
PROJECT_ROWS = {
    "a service's log that the caller cannot read": Row(RUN, [caller("deployer")], "permissions of logging.viewer", "missing",
        "missing permissions: logging.logEntries.list", "*--role=roles/logging.viewer*"),
    "APIs that the caller cannot read": Row(None, [stranger], "APIs", "unknown", fix="*--role=roles/serviceusage.serviceUsageViewer*"),
    "a permission": Row(None, [stranger], "permissions of iam.serviceAccountUser", "missing",
        "missing permissions: iam.serviceAccounts.actAs",
        "gcloud projects add-iam-policy-binding *--role=roles/iam.serviceAccountUser*"),
    "permissions that Google does not test": Row(None, [fails("cloudresourcemanager.projects.testIamPermissions", 400)],
        "permissions of iam.serviceAccountUser", "unknown", fix="*"),
    "a role that is limited to names": Row(RUN, [CI], "permissions of storage.admin", "missing", fix="*--role=roles/storage.admin*"),
    "the same with the creation": Row(RUN, [CI, creator], "permissions of storage.admin", "unknown",
        "not granted on the whole project; *: *storage.buckets.get*", "*--role=roles/storage.admin*"),
    "the public": Row(RUN, [PUBLIC], "policy iam.allowedPolicyMemberDomains", "ok"),
    "no public": Row(RUN, [PUBLIC, policy("iam.allowedPolicyMemberDomains", listPolicy={"allowedValues": ["C01234567"]})],
        "policy iam.allowedPolicyMemberDomains", "missing", "cloudRun.public is set, *",
        f"{POLICIES} delete iam.allowedPolicyMemberDomains --project={PROJECT}"),
    "own keys for buckets": Row(RUN, [denied("storage")], "policy gcp.restrictNonCmekServices", "missing",
        "*but a stack sets none. Exempt the project, or set bucket.existing",
        f"echo '{EXEMPT}' | {POLICIES} set-policy /dev/stdin --project={PROJECT}"),
    "own keys for buckets and services": Row(RUN, [denied("storage", "run")], "policy gcp.restrictNonCmekServices", "missing",
        "*Exempt the project", "*"),
    "own keys for images": Row(TPU, [denied("artifactregistry")], "policy gcp.restrictNonCmekServices", "missing", "*Exempt the project", "*"),
    "own keys for what no stack has": Row(TPU, [denied("bigquery")], "policy gcp.restrictNonCmekServices", "ok"),
    "no guest attributes": Row(TPU, [enforced("compute.disableGuestAttributesAccess")],
        "policy compute.disableGuestAttributesAccess", "missing", "*gcloud cannot open a tunnel",
        f"{POLICIES} disable-enforce compute.disableGuestAttributesAccess --project={PROJECT}"),
    "no guest attributes on Cloud Run": Row(RUN, [enforced("compute.disableGuestAttributesAccess")],
        "policy compute.disableGuestAttributesAccess", None),
    "OS Login beside keys in the metadata": Row(TPU, [METADATA_KEY, enforced("compute.requireOsLogin")],
        "policy compute.requireOsLogin", "missing", fix=f"pulumi config set --stack {TPU} --path gemma-serving:tpu.ssh os-login"),
    "OS Login as the settings have it": Row(TPU, [enforced("compute.requireOsLogin")], "policy compute.requireOsLogin", None),
    "policies that the caller cannot read": Row(None, [stranger], "policy iam.disableServiceAccountCreation", "unknown",
        fix="*roles/orgpolicy.policyViewer*"),
    "a tunnel's role with more": Row(TPU, [tunnel("gemmaTunnel"), tunnel_role("tpu.nodes.delete")], "role gemmaTunnel", "ok",
        "3 permissions, plus some that a tunnel does not need: tpu.nodes.delete"),
    "a tunnel's role by its whole name": Row(TPU, [tunnel(f"projects/{PROJECT}/roles/gemmaTunnel"), tunnel_role()],
        "role gemmaTunnel", "ok", "3 permissions"),
    "a tunnel's role of another project": Row(TPU, [tunnel("projects/another-project/roles/gemmaTunnel")], "role gemmaTunnel",
        "missing", "*only be granted in its own project*", f"*--project={PROJECT}*"),
    "a tunnel's role that the caller cannot read": Row(TPU, [READER, tunnel("gemmaTunnel")], "role gemmaTunnel", "unknown",
        fix="*--role=roles/iam.roleViewer*"),
    "the organization's role that the caller cannot read": Row(TPU, [READER, tunnel("organizations/123/roles/gemmaTunnel")],
        "role gemmaTunnel", "unknown", fix="gcloud organizations add-iam-policy-binding 123 *"),
    "a tunnel's role without its API": Row(TPU, [READER, tunnel("gemmaTunnel"), off("iam")], "role gemmaTunnel", "unknown",
        fix="*services enable iam.googleapis.com*"),
    "a key in Cloud KMS without its API": Row(RUN, [key_user, off("cloudkms")], "secrets key", "missing", fix=enables("cloudkms")),
    "a key in Cloud KMS": Row(RUN, [key_user, new_key], "secrets key", "missing",
        f"{KEY} does not exist (docs/ci.md creates one) or you do not have permission to decrypt with it",
        "*--role=roles/cloudkms.cryptoKeyEncrypterDecrypter"),
    "a key in Cloud KMS that only decrypts": Row(RUN, [key_user, new_key, decrypter], "secrets key", "ok",
        "*can decrypt; creating or changing a stack needs roles/cloudkms.cryptoKeyEncrypterDecrypter"),
    "a key in Cloud KMS with a grant on the project": Row(RUN, [key_user, new_key, granted_on_project], "secrets key", "ok",
        f"{KEY}: you can encrypt and decrypt"),
    "a key in Cloud KMS that Google does not test": Row(RUN,
        [key_user, fails("cloudkms.projects.locations.keyRings.cryptoKeys.testIamPermissions", 403)], "secrets key", "unknown",
        fix="*"),
}  # fmt: skip
QUOTA_FAILS = fails("serviceusage.services.consumerQuotaMetrics.get", 404)
REGIONS = ("us-east5", "europe-west4", "asia-northeast1", "southamerica-west1")
GPUS = "quota of GPUs in us-east4"
SMALL = scenario(run=Run(gpu_quota=0, memory_quota_gib=40, cpu_quota=20))
UNKNOWN_ZONE = scenario(tpu=Tpu(zones={name: zone for name, zone in Tpu().zones.items() if name != "us-east5-b"}))
OTHER_RUNTIME = settings(
    ("    provisioning: flex-start\n", "    provisioning: flex-start\n    runtimeVersion: v2-none\n"), stack=TPU
)
ALL_REGIONS = "quota of chips in all regions"
FLEX_OR_SPOT = ("    provisioning: flex-start\n", "    provisioning: [flex-start, spot]\n")
OF_FORMS = [forms("flex-start, spot, standard"), without_standard_quota]
ON_COMPUTE = settings(
    ("    provisioning: flex-start\n", "    provisioning: [spot, standard]\n    api: compute-engine\n"), stack=TPU
)
ACCELERATOR_ROWS = {
    "GPUs": Row(RUN, [], GPUS, "ok", "3 GPUs, 1 needed", values={"limit": 3.0, "needed": 1.0}),
    "GPUs that another service uses": Row(RUN, [scenario(run=Run(gpu_quota=1)), theirs], GPUS, "missing",
        "1 GPUs, 1 needed, 1 in use", "*--preferred-value=2 *"),
    "RTX PRO 6000": Row(RTX, [], "quota of GPUs in us-central1", "ok", values={"limit": 3.0}),
    "no RTX PRO 6000, in thousandths": Row(RTX, [SMALL], "quota of GPUs in us-central1", "missing", fix="*--preferred-value=1000 *"),
    "memory": Row(RTX, [SMALL], "quota of GiB in us-central1", "missing", fix=INCREASE, values={"limit": 40.0}),
    "networks": Row(RUN, [on("compute")], "quota of networks", "ok"),
    "no network": Row(RUN, [every_network], "quota of networks", "missing", fix="request NETWORKS at https://*"),
    "no network without Direct VPC": Row(RUN,
        [settings(("    region: us-east4\n", "    region: us-east4\n    directVpc: false\n"), stack=RUN)], "quota of networks",
        None),
    "a zone that Google does not name": Row(TPU, [UNKNOWN_ZONE], "quota of chips in us-east5-b", "ok", "*has enough",
        values={"limit": 0.0, "needed": 4.0}),
    "a quota that Google does not name": Row(TPU, [QUOTA_FAILS], "quota of chips in us-east5-b", "unknown", fix="*"),
    "one zone is enough": Row(TPU, [chips(4, "us-east5-a")], "quota of chips in us-east5-b", "ok", "0 chips, 4 needed, but us-east5-a has enough"),
    "instances": Row(TPU, [compute_engine()], OF_REGION, "ok", values={"limit": 1536.0, "needed": 4.0}),
    "no instances": Row(TPU, [compute_engine(), instances(REGIONS)], OF_REGION, "missing",
        fix="*--quota-id=PREEMPTIBLE-TPU-V6E-per-project-region --dimensions=region=us-east5 --preferred-value=4*",
        values={"limit": 0.0, "needed": 4.0}),
    "all regions": Row(TPU, [compute_engine()], ALL_REGIONS, "ok", "1536 chips, 0 in use, 4 needed"),
    "not in all regions": Row(TPU, [compute_engine(), instances([], all_regions_quota_chips=0)], ALL_REGIONS, "missing",
        "0 chips, 0 in use, 4 needed", "request GPUS_ALL_REGIONS at https://*"),
    "all regions for queued resources": Row(TPU, [], ALL_REGIONS, None),
    "one region is enough": Row(TPU, [compute_engine(), instances(["us-east5"])], OF_REGION, "ok", "0 chips, 4 needed, but * has enough"),
    "a quota of the family": Row(TPU, [compute_engine(), instances(["us-east5"], family_quota_chips=4)], OF_REGION, "ok"),
    "a quota of instances that Google does not name": Row(TPU,
        [compute_engine(), fails("serviceusage.services.consumerQuotaMetrics.get", 403)], OF_REGION, "unknown", fix="*"),
    "forms that share a quota": Row(TPU, OF_FORMS, "quota of chips (flex-start, spot) in us-east5-a", "ok"),
    "a form with its own quota": Row(TPU, OF_FORMS, "quota of chips (standard) in us-east5-a", "missing",
        fix="*--quota-id=TPUV6EPerProjectPerZoneForTPUAPI --dimensions=zone=us-east5-a*", values={"limit": 0.0, "needed": 4.0}),
    "a form above the ceiling": Row(TPU, [forms("flex-start, standard", "    maxUsdPerHour: 8"), without_standard_quota], CHIPS, "ok"),
    "a form of instances": Row(TPU, [ON_COMPUTE], "quota of chips (spot) in us-east5", "ok"),
    "another form of instances": Row(TPU, [ON_COMPUTE], "quota of chips (standard) in us-east5", "missing", fix=INCREASE,
        values={"limit": 0.0, "needed": 4.0}),
    "a zone without the form": Row(TPU, [settings(MORE_ZONES, stack=TPU)], "v6e-4 in us-central1-b", "missing", fix="*"),
    "a zone with one of the forms": Row(TPU, [settings(MORE_ZONES, FLEX_OR_SPOT, stack=TPU)], "v6e-4 in us-central1-b", "ok", "*; not as flex-start"),
    "zones that the caller cannot read": Row(TPU, [fails("tpu.projects.locations.acceleratorTypes.list", 403)],
        "v6e-4 in us-east5-b", "unknown", fix="*"),
    "a runtime that the zone lacks": Row(TPU, [OTHER_RUNTIME], OFFER, "missing",
        "the zone does not offer runtime version v2-none",
        "remove tpu.runtimeVersion, or set one of tpu-ubuntu2204-base, v2-alpha-tpuv5*"),
}  # fmt: skip
PASSPHRASE = "Pulumi passphrase"
NOT_SET = variables(PULUMI_CONFIG_PASSPHRASE=None, PULUMI_CONFIG_PASSPHRASE_FILE=None)
OTHER_PROVIDER = settings(("config:\n", "secretsprovider: gcpkms://projects/p\nconfig:\n"), stack=RUN)
MACHINE_ROWS = {
    "gcloud without alpha": Row(TPU, [gcloud("core")], "gcloud alpha", "missing", fix="gcloud components install alpha"),
    "no gcloud": Row(TPU, [gcloud()], "gcloud", "missing", fix="https://*"),
    "a broken gcloud": Row(TPU, [gcloud("core", text=" ")], "gcloud", "unknown"),
    "gcloud without a network": Row(TPU, [gcloud("core", text=f"echo '{NO_NETWORK} with url: /token' >&2\n")], "gcloud login", "unknown"),
    "gcloud without a login": Row(TPU, [lambda world: setattr(world, "account", ""), gcloud("core")], "gcloud login", "missing",
        NO_LOGIN, "gcloud auth login"),
    "no credentials, which precede gcloud's login": Row(TPU,
        [variables(GOOGLE_OAUTH_ACCESS_TOKEN=None, GOOGLE_APPLICATION_CREDENTIALS="/none.json")], "credentials", "missing",
        fix="unset GOOGLE_APPLICATION_CREDENTIALS"),
    "credentials that Google refuses": Row(None, [forgotten], "credentials", "missing", fix="*"),
    "credentials that Google does not answer about": Row(None, [unreachable], "credentials", "unknown", fix="*"),
    "no login of the engine": Row(None, [logged_out], "Pulumi backend", "missing", fix="pulumi login"),
    "an engine that hangs": Row(None, [hangs], "Pulumi backend", "unknown"),
    "a bucket of states without its API": Row(None, [lacks_bucket, off("storage")], "Pulumi backend", "unknown",
        f"API storage is off in project {PROJECT}", enables("storage")),
    "a bucket of states that the caller cannot read": Row(None, [lacks_bucket, on("storage"), fails("storage.buckets.get", 403)],
        "Pulumi backend", "unknown", fix="gcloud projects add-iam-policy-binding *"),
    "no passphrase": Row(RUN, [NOT_SET], PASSPHRASE, "missing", fix="export PULUMI_CONFIG_PASSPHRASE_FILE=FILE"),
    "no passphrase, with another provider": Row(RUN, [NOT_SET, OTHER_PROVIDER], PASSPHRASE, "ok"),
    "a passphrase without a salt": Row(RUN, [], PASSPHRASE, "ok", "PULUMI_CONFIG_PASSPHRASE is set"),
    "a passphrase without a backend": Row(RUN,
        [lambda world: world.environment.setenv("PULUMI_HOME", str(world.folder)), variables(PULUMI_BACKEND_URL=None)],
        PASSPHRASE, None),
}  # fmt: skip
STAGE = f"gemma stage_model {RUN}"
OWN_MODEL = settings(
    ("  gemma-serving:modelRevision: 2096d38dad51a19b8e982b44241c47102a8bbb00\n", "  gemma-serving:modelConfig: own\n"),
    stack=RUN,
)
REVISION = f"  gemma-serving:modelRevision: {COMMIT}\n"
NO_REVISION = settings((REVISION, ""), stack=TPU)
PINNED = f"pulumi config set --stack {TPU} gemma-serving:modelRevision {COMMIT}"
BOTH = ("model.safetensors", "config.json")
SAVE = f"gemma save_token {TPU} hfToken"
NO_COMMIT = (
    f"set gemma-serving:modelRevision: {COMMIT} in Pulumi.{TPU}.yaml (https://huggingface.co/{MODEL}/commits/main)"
)
PUSH_IMAGE = "push it, or, if it is there: gcloud artifacts repositories add-iam-policy-binding * --role=roles/artifactregistry.reader"
MISSPELT = settings((f"model: {MODEL}\n", f"model: {MODEL}t\n"), stack=TPU)
NO_IMAGES = scenario(images=Images(existing=()))
HUB_LOGIN = below("config:", HUB_ACCOUNT, stack=RUN)
MODEL_ROWS = {
    "the user's own weights": Row(RUN, [OWN_MODEL], "weights", "missing", fix=f"{STAGE} --from FOLDER"),
    "the user's own weights are not the hub's": Row(RUN, [OWN_MODEL], "hub", None),
    "weights that the caller cannot read": Row(RUN, [staged(), fails("storage.objects.get", 403)], "weights", "unknown", fix="*"),
    "weights of another commit": Row(RUN, [staged(commit=NONE)], "weights", "missing",
        "modelRevision is 2096d38dad51a19b8e982b44241c47102a8bbb00, but the weights in *", STAGE),
    "half of another tool's files": Row(RUN, [THEIR_BUCKET, put("model.safetensors")], "weights", "missing", fix=STAGE),
    "another tool's files": Row(RUN, [THEIR_BUCKET, put(*BOTH)], "weights", "ok",
        "The weights in gs://theirs/models/ours have no gemma-serving-manifest.json: *"),
    "a public model": Row(TPU, [], "hub", "ok", f"{MODEL} is readable (no token needed)"),
    "a gated model": Row(TPU, [hub("gated")], "hub", "missing", f"{MODEL} is gated, but no token is set", SAVE),
    "terms that are not accepted": Row(TPU, [WITH_TOKEN, hub("gated")], "hub", "missing",
        "the token of the stack's secret * has not accepted the terms", "accept the terms at *"),
    "a token that is invalid": Row(TPU, [WITH_TOKEN, scenario(hub=Hub(expired_tokens=(CANARY,)))], "hub", "missing",
        "the token of the stack's secret * is invalid", SAVE),
    "a token of an account that can read": Row(TPU, [WITH_TOKEN, hub("gated", readable=(MODEL,))], "hub", "ok",
        f"{MODEL} is readable (the token of the stack's secret *)"),
    "a misspelt id": Row(TPU, [MISSPELT], "hub", "missing",
        f"{MODEL}t does not exist on the hub or is private; closest existing ids: {MODEL},*",
        f"set gemma-serving:model: {MODEL} in Pulumi.{TPU}.yaml"),
    "a model that left the hub": Row(TPU, [hub("absent")], "hub", "missing",
        fix=f"set gemma-serving:model: AN_ID_OF_THE_HUB in Pulumi.{TPU}.yaml; or, if it is private: {SAVE}"),
    "a hub that fails": Row(TPU, [fails("hub.models.authCheck", 503)], "hub", "unknown", "the hub returned HTTP 503"),
    "the commit": Row(TPU, [], "commit", "ok", f"{MODEL} has {COMMIT}"),
    "an older commit": Row(TPU, [settings((COMMIT, OLDER), stack=TPU)], "commit", "ok", f"{MODEL} has {OLDER}"),
    "no such commit": Row(TPU, [settings((COMMIT, f'"{NONE}"'), stack=TPU)], "commit", "missing", f"{MODEL} has no commit {NONE}", NO_COMMIT),
    "the main branch": Row(TPU, [NO_REVISION], "commit", "ok",
        f"modelRevision is not set: the server loads the main branch of {MODEL}, now {COMMIT}; to pin it, run: {PINNED}"),
    "a hub that names no commit": Row(TPU, [nameless], "commit", "unknown"),
    "a hub without the secret": Row(TPU, [BY_REFERENCE], "hub", "unknown"),
    "a secret": Row(TPU, [BY_REFERENCE, secret(TOKEN)], "hfTokenSecret", "ok"),
    "a secret's token": Row(TPU, [BY_REFERENCE, secret(TOKEN), hub("gated", readable=(MODEL,))], "hub", "ok", f"*(the token of {TOKEN})"),
    "a secret's invalid token": Row(TPU, [BY_REFERENCE, secret(TOKEN), scenario(hub=Hub(expired_tokens=(CANARY,)))], "hub",
        "missing", f"the token of {TOKEN} is invalid", SAVE),
    "an image": Row(RUN, [], "image", "ok", "*; 100 Docker Hub pulls left for this address"),
    "a registry that limits pulls": Row(RUN, [registry_answers(429)], "image", "unknown", "the registry returned HTTP 429 for *"),
    "a private image": Row(RUN, [HUB_LOGIN, NO_IMAGES], "image", "unknown",
        "Docker Hub does not show * without the account of gemma-serving:dockerHub*"),
    "no image in Artifact Registry": Row(RUN, [IMAGE, at_registry], "image", "missing",
        "* does not exist in Artifact Registry, or your account *", PUSH_IMAGE),
    "an image in Artifact Registry": Row(RUN, [IMAGE, at_registry, listed_image], "image", "ok"),
    "a secret with a newline": Row(TPU, [BY_REFERENCE, secret(TOKEN, f"{CANARY}\n")], "hfTokenSecret", "missing",
        f"The value of {TOKEN} ends in a newline, which callers do not send", f"{SAVE} --secret their-token"),
    "a hub that a token with a newline never asks": Row(TPU, [BY_REFERENCE, secret(TOKEN, f"{CANARY}\n")], "hub", "unknown",
        f"the hub was not asked: The value of {TOKEN} ends in a newline*"),
    "a secret that the caller may not read": Row(TPU, [BY_REFERENCE, secret(TOKEN), fails("secretmanager.projects.secrets.versions.access", 403)],
        "hfTokenSecret", "unknown", f"{TOKEN} cannot be read: *"),
    "no token of Docker Hub": Row(RUN, [HUB_LOGIN], "docker hub", "missing", fix="gcloud secrets create docker-hub *"),
    "a token of Docker Hub": Row(RUN, [HUB_LOGIN, secret(ACCOUNT, "x")], "docker hub", "ok"),
    "a disabled token of Docker Hub": Row(RUN, [HUB_LOGIN, secret(ACCOUNT, "x", "disable")], "docker hub", "missing",
        "*is DISABLED", "read -rs VALUE && * | gcloud secrets versions add docker-hub *"),
    "a token of Docker Hub with a newline": Row(RUN, [HUB_LOGIN, secret(ACCOUNT, "x\n")], "docker hub", "missing",
        "*ends in a newline*", "read -rs VALUE && * | gcloud secrets versions add docker-hub *"),
}  # fmt: skip
ROWS = {**PROJECT_ROWS, **ACCELERATOR_ROWS, **MACHINE_ROWS, **MODEL_ROWS}
