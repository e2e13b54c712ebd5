"""Rules that the discovery documents state in sentences, for bodies and parameters. A refusal repeats Google's sentence.

Rules that depend on other resources, on quota or on the state are in `localcloud.services`.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from localcloud.json_values import JsonObject, as_list, as_object, part, parts, strings

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ANNOTATION_KEY = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_SECRET_VERSION = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
_PORT_OR_RANGE = re.compile(r"\d+(-\d+)?")
_MAX_PORT = 65_535
_MAX_MODE = 0o777
_MAX_VARIABLE_NAME = 32_768
_MAX_ANNOTATION_BYTES = 16 * 1024
_CENTURY_S = 100 * 365 * 24 * 3600
_MIN_ROTATION_S, _MAX_ROTATION_S = 3600, 3_153_600_000
_UNIQUE_LOCAL = ipaddress.IPv6Network("fd20::/20")
_PRIVATE_ASNS = (range(64_512, 65_535), range(4_200_000_000, 4_294_967_295))
"""RFC 6996."""
_SAME_TEXT = {"compute.v1": "compute.beta"}
_PARTNER_ASN = 16_550
"""The ASN that Google asks for with Partner Interconnect (Cloud Router's documentation)."""


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A sentence of a document, and whether a normalised object obeys it. `field` is where a refusal points; empty: the object itself."""

    field: str
    sentence: str
    obeyed: Callable[[JsonObject], bool]


def broken(document: str, schema: str, value: JsonObject) -> Iterator[StatedRule]:
    """Yield the rules of a schema, such as `Secret` of `secretmanager.v1`, that an object breaks."""
    for rule in RULES.get(f"{_SAME_TEXT.get(document, document)} {schema}", ()):
        if not rule.obeyed(value):
            yield rule


def _within(key: str, low: int, high: int) -> Callable[[JsonObject], bool]:
    """Return a test of limits. An absent number is the default; so is 0, which protocol buffers do not tell from an absent one."""
    return lambda value: not value.get(key) or low <= int(value[key]) <= high


def _given(key: str) -> Callable[[JsonObject], bool]:
    return lambda value: bool(value.get(key))


def _not_together(key: str, *others: str) -> Callable[[JsonObject], bool]:
    return lambda value: not value.get(key) or not any(value.get(other) for other in others)


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _seconds(text: object) -> float:
    return float(str(text).removesuffix("s"))


def _annotations_named(secret: JsonObject) -> bool:
    return all(_ANNOTATION_KEY.fullmatch(key) for key in part(secret, "annotations"))


def _annotations_small(secret: JsonObject) -> bool:
    sizes = (len(key.encode()) + len(str(value).encode()) for key, value in part(secret, "annotations").items())
    return sum(sizes) < _MAX_ANNOTATION_BYTES


def _aliases_named(secret: JsonObject) -> bool:
    return all(alias[:1].isalpha() and alias not in {"latest", "NEW"} for alias in part(secret, "versionAliases"))


def _rotation_period(rotation: JsonObject) -> bool:
    period = rotation.get("rotationPeriod")
    return period is None or _MIN_ROTATION_S <= _seconds(period) <= _MAX_ROTATION_S


def _short_name(variable: JsonObject) -> bool:
    return len(variable.get("name") or "") <= _MAX_VARIABLE_NAME


def _secret_items(source: JsonObject) -> bool:
    return all(item.get("path") and item.get("version") for item in parts(source, "items"))


def _conditions_have_version_3(policy: JsonObject) -> bool:
    return policy.get("version") == 3 or not any(binding.get("condition") for binding in parts(policy, "bindings"))  # noqa: PLR2004 - as in the sentence


def _bindings_have_members(policy: JsonObject) -> bool:
    return all(binding.get("members") for binding in parts(policy, "bindings"))


def _protocols(firewall: JsonObject) -> bool:
    return all(item.get("IPProtocol") for key in ("allowed", "denied") for item in parts(firewall, key))


def _ports(firewall: JsonObject) -> bool:
    items = [item for key in ("allowed", "denied") for item in parts(firewall, key)]
    return all(_PORT_OR_RANGE.fullmatch(str(port)) for item in items for port in strings(item, "ports"))


def _firewall_log(log: JsonObject) -> bool:
    return not log.get("metadata") or bool(log.get("enable"))


def _unique_local(network: JsonObject) -> bool:
    try:
        block = ipaddress.IPv6Network(network.get("internalIpv6Range") or "fd20::/48")
    except ValueError:
        return False
    return block.prefixlen == 48 and block.subnet_of(_UNIQUE_LOCAL)  # noqa: PLR2004 - as in the sentence


def _private_asn(bgp: JsonObject) -> bool:
    asn = int(bgp.get("asn") or _PARTNER_ASN)
    return asn == _PARTNER_ASN or any(asn in private for private in _PRIVATE_ASNS)


def _dynamic_minimum(nat: JsonObject) -> bool:
    least = int(nat.get("minPortsPerVm") or 32)
    return not nat.get("enableDynamicPortAllocation") or (least >= 32 and _power_of_two(least))  # noqa: PLR2004 - as in the sentence


def _dynamic_maximum(nat: JsonObject) -> bool:
    most, least = int(nat.get("maxPortsPerVm") or 0), int(nat.get("minPortsPerVm") or 0)
    return not (nat.get("enableDynamicPortAllocation") and most) or (_power_of_two(most) and most > (least or 63))


def _automatic_addresses(nat: JsonObject) -> bool:
    return nat.get("natIpAllocateOption") != "AUTO_ONLY" or not nat.get("natIps")


def _lifecycle_rules(bucket: JsonObject) -> list[JsonObject]:
    return [as_object(rule) for rule in as_list(part(bucket, "lifecycle").get("rule"))]


def _storage_classes(bucket: JsonObject) -> bool:
    actions = [part(rule, "action") for rule in _lifecycle_rules(bucket)]
    return all(action.get("type") != "SetStorageClass" or action.get("storageClass") for action in actions)


def _noncurrent_days(bucket: JsonObject) -> bool:
    conditions = [part(rule, "condition") for rule in _lifecycle_rules(bucket)]
    return all(int(condition.get("daysSinceNoncurrentTime") or 0) >= 0 for condition in conditions)


def _retention(bucket: JsonObject) -> bool:
    period = part(bucket, "retentionPolicy").get("retentionPeriod")
    return period is None or 0 < int(period) < _CENTURY_S


def _tpu_block(node: JsonObject) -> bool:
    try:
        return ipaddress.ip_network(node.get("cidrBlock") or "10.0.0.0/29").prefixlen == 29  # noqa: PLR2004 - as in the sentence
    except ValueError:
        return False


def _usable_uuid(text: str) -> bool:
    try:
        return UUID(text).int != 0
    except ValueError:
        return False


_CONDITIONAL = StatedRule(
    "version",
    "Any operation that affects conditional role bindings must specify version `3`.",
    _conditions_have_version_3,
)
_POLICY = (
    StatedRule("bindings", "Each of the `bindings` must contain at least one principal.", _bindings_have_members),
    _CONDITIONAL,
)
_POLICY_REQUEST = (
    StatedRule(
        "policy", "REQUIRED: The complete policy to be applied to the `resource`.", lambda request: "policy" in request
    ),
)
_AUDIT = (StatedRule("", "An AuditConfig must have one or more AuditLogConfigs.", _given("auditLogConfigs")),)
_PORT = (StatedRule("port", "Must be in the range 1 to 65535.", _within("port", 1, _MAX_PORT)),)
_RUN = "run.v2 GoogleCloudRunV2"

RULES: Mapping[str, tuple[StatedRule, ...]] = {
    "artifactregistry.v1 SetIamPolicyRequest": _POLICY_REQUEST,
    "artifactregistry.v1 Policy": _POLICY,
    "artifactregistry.v1 CleanupPolicy": (
        StatedRule(
            "mostRecentVersions",
            "May only be specified with a Keep action.",
            lambda policy: not policy.get("mostRecentVersions") or policy.get("action") == "KEEP",
        ),
    ),
    "artifactregistry.v1 CommonRemoteRepository": (
        StatedRule("uri", "Required. A common public repository base for remote repository.", _given("uri")),
    ),
    "artifactregistry.v1 Repository": (
        StatedRule(
            "cleanupPolicies",
            "They must unique within a repository and be under 128 characters in length.",
            lambda repository: all(len(key) < 128 for key in part(repository, "cleanupPolicies")),  # noqa: PLR2004 - as in the sentence
        ),
        StatedRule(
            "virtualRepositoryConfig",
            "Upstream policies cannot be set on a standard repository.",
            lambda repository: (
                repository.get("mode", "STANDARD_REPOSITORY") != "STANDARD_REPOSITORY"
                or not part(repository, "virtualRepositoryConfig").get("upstreamPolicies")
            ),
        ),
    ),
    "artifactregistry.v1 UsernamePasswordCredentials": (
        StatedRule(
            "passwordSecretVersion",
            "Must be in the format of `projects/{project}/secrets/{secret}/versions/{version}`.",
            lambda login: (
                _SECRET_VERSION.fullmatch(login.get("passwordSecretVersion") or "projects/p/secrets/s/versions/1")
                is not None
            ),
        ),
    ),
    "cloudresourcemanager.v1 SetIamPolicyRequest": _POLICY_REQUEST,
    "cloudresourcemanager.v1 Policy": _POLICY,
    "cloudresourcemanager.v1 AuditConfig": _AUDIT,
    "compute.beta Firewall": (
        StatedRule("allowed", "The protocol type is required when creating a firewall rule.", _protocols),
        StatedRule("allowed", "Each entry must be either an integer or a range.", _ports),
        StatedRule(
            "sourceServiceAccounts",
            "The connection does not need to match both fields for the firewall to apply."
            "sourceServiceAccounts cannot be used at the same time assourceTags or targetTags.",
            _not_together("sourceServiceAccounts", "sourceTags", "targetTags"),
        ),
        StatedRule(
            "targetServiceAccounts",
            "A list of service accounts indicating sets of instances located in the network that may make network connections as specified "
            "inallowed[].targetServiceAccounts cannot be used at the same time astargetTags or sourceTags.",
            _not_together("targetServiceAccounts", "targetTags", "sourceTags"),
        ),
    ),
    "compute.beta FirewallLogConfig": (
        StatedRule(
            "metadata",
            "This field can only be specified for a particular firewall rule if logging is enabled for that rule.",
            _firewall_log,
        ),
    ),
    "compute.beta Network": (
        StatedRule(
            "internalIpv6Range",
            "The input must be a valid /48 ULA IPv6 address and must be within the fd20::/20.",
            _unique_local,
        ),
    ),
    "compute.beta RouterBgp": (
        StatedRule("asn", "Must be anRFC6996 private ASN, either 16-bit or 32-bit.", _private_asn),
        StatedRule(
            "keepaliveInterval", "If set, this value must be between 20 and 60.", _within("keepaliveInterval", 20, 60)
        ),
    ),
    "compute.beta RouterNat": (
        StatedRule(
            "name",
            "The name must be 1-63 characters long and comply withRFC1035.",
            lambda nat: _NAME.fullmatch(nat.get("name") or "") is not None,
        ),
        StatedRule(
            "enableDynamicPortAllocation",
            "enableEndpointIndependentMapping cannot be set to true.",
            _not_together("enableDynamicPortAllocation", "enableEndpointIndependentMapping"),
        ),
        StatedRule(
            "minPortsPerVm",
            "If minPorts is set, minPortsPerVm must be set to a power of two greater than or equal to 32.",
            _dynamic_minimum,
        ),
        StatedRule(
            "maxPortsPerVm",
            "If Dynamic Port Allocation is enabled, and this field is set, it must be set to a power of two greater than minPortsPerVm, "
            "or 64 if minPortsPerVm is not set.",
            _dynamic_maximum,
        ),
        StatedRule(
            "natIps", "Nat IPs are allocated by GCP; customers can not specify any Nat IPs.", _automatic_addresses
        ),
    ),
    f"{_RUN}BinaryAuthorization": (
        StatedRule(
            "breakglassJustification",
            "If use_default is False, then it must be empty.",
            lambda policy: not policy.get("breakglassJustification") or bool(policy.get("useDefault")),
        ),
    ),
    f"{_RUN}ContainerPort": (
        StatedRule(
            "containerPort",
            "This must be a valid TCP port number, 0 < container_port < 65536.",
            lambda port: 0 < int(port.get("containerPort", 8080)) <= _MAX_PORT,
        ),
    ),
    f"{_RUN}EnvVar": (StatedRule("name", "Must not exceed 32768 characters.", _short_name),),
    f"{_RUN}GRPCAction": (
        StatedRule("port", "Number must be in the range 1 to 65535.", _within("port", 1, _MAX_PORT)),
    ),
    f"{_RUN}HTTPGetAction": _PORT,
    f"{_RUN}HTTPHeader": (StatedRule("name", "Required. The header field name", _given("name")),),
    f"{_RUN}NetworkInterface": (
        StatedRule(
            "network",
            "At least one of network or subnetwork must be specified.",
            lambda interface: bool(interface.get("network") or interface.get("subnetwork")),
        ),
    ),
    f"{_RUN}NodeSelector": (
        StatedRule("accelerator", "Required. GPU accelerator type to attach to an instance.", _given("accelerator")),
    ),
    f"{_RUN}SecretKeySelector": (
        StatedRule("secret", "Required. The name of the secret in Cloud Secret Manager.", _given("secret")),
    ),
    f"{_RUN}SecretVolumeSource": (
        StatedRule("secret", "Required. The name of the secret in Cloud Secret Manager.", _given("secret")),
        StatedRule(
            "defaultMode",
            "Must be a value between 0000 and 0777 (octal), defaulting to 0444.",
            lambda source: 0 <= int(source.get("defaultMode") or 0) <= _MAX_MODE,
        ),
        StatedRule("items", "When items are defined, they must specify a path and a version.", _secret_items),
    ),
    f"{_RUN}TCPSocketAction": _PORT,
    f"{_RUN}VersionToPath": (
        StatedRule(
            "mode",
            "Integer octal mode bits to use on this file, must be a value between 01 and 0777 (octal).",
            _within("mode", 1, _MAX_MODE),
        ),
    ),
    "run.v2 GoogleIamV1SetIamPolicyRequest": _POLICY_REQUEST,
    "run.v2 GoogleIamV1Policy": _POLICY,
    "run.v2 GoogleIamV1AuditConfig": _AUDIT,
    "secretmanager.v1 SetIamPolicyRequest": _POLICY_REQUEST,
    "secretmanager.v1 Policy": _POLICY,
    "secretmanager.v1 AuditConfig": _AUDIT,
    "secretmanager.v1 AddSecretVersionRequest": (
        StatedRule(
            "payload", "Required. The secret payload of the SecretVersion.", lambda request: "payload" in request
        ),
    ),
    "secretmanager.v1 Rotation": (
        StatedRule(
            "rotationPeriod",
            "Must be in seconds and at least 3600s (1h) and at most 3153600000s (100 years).",
            _rotation_period,
        ),
        StatedRule(
            "nextRotationTime",
            "If rotation_period is set, next_rotation_time must be set. "
            "next_rotation_time will be advanced by this period when the service automatically sends rotation notifications.",
            lambda rotation: not rotation.get("rotationPeriod") or bool(rotation.get("nextRotationTime")),
        ),
    ),
    "secretmanager.v1 Secret": (
        StatedRule(
            "annotations",
            "Annotation keys must be between 1 and 63 characters long, have a UTF-8 encoding of maximum 128 bytes, begin and end with an "
            "alphanumeric character ([a-z0-9A-Z]), and may have dashes (-), underscores (_), dots (.), and alphanumerics in between these symbols.",
            _annotations_named,
        ),
        StatedRule(
            "annotations", "The total size of annotation keys and values must be less than 16KiB.", _annotations_small
        ),
        StatedRule(
            "rotation",
            "Secret.topics must be set to configure rotation.",
            lambda secret: not secret.get("rotation") or bool(secret.get("topics")),
        ),
        StatedRule(
            "versionAliases",
            "An alias string must start with a letter and cannot be the string 'latest' or 'NEW'.",
            _aliases_named,
        ),
    ),
    "secretmanager.v1 UserManaged": (StatedRule("replicas", "Cannot be empty.", _given("replicas")),),
    "storage.v1 Bucket": (
        StatedRule("lifecycle", "Required iff the type of the action is SetStorageClass.", _storage_classes),
        StatedRule("lifecycle", "The value of the field must be a nonnegative integer.", _noncurrent_days),
        StatedRule(
            "retentionPolicy", "Retention duration must be greater than zero and less than 100 years.", _retention
        ),
    ),
    "tpu.v2alpha1 Node": (
        StatedRule(
            "cidrBlock",
            "This CIDR block must be a /29 block; the Compute Engine networks API forbids a smaller block, "
            "and using a larger block would be wasteful (a node can only consume one IP address).",
            _tpu_block,
        ),
    ),
}
"""Document and schema -> its rules. A rule sees the object after its types were checked."""

PAGE_SIZE = "Requested page size cannot exceed 200."
REQUEST_ID = "The request ID must be a valid UUID with the exception that zero UUID is not supported (00000000-0000-0000-0000-000000000000)."
_MAX_PAGE = 200


def broken_parameter(method: str, name: str, value: object) -> str:
    """Return the sentence that a parameter of a method breaks, or an empty text."""
    if (method, name) == ("serviceusage.services.list", "pageSize") and isinstance(value, int) and value > _MAX_PAGE:
        return PAGE_SIZE
    if method.startswith("compute.") and name == "requestId" and not _usable_uuid(str(value)):
        return REQUEST_ID
    return ""
