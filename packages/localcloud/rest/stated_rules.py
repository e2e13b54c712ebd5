"""Rules that the discovery documents state in sentences, for bodies and parameters. An error repeats Google's sentence.

`data/stated_rules.toml` lists them; rules that need code are functions here.
Rules that depend on other resources, on quota or on the state are in `localcloud.services`.
"""

import ipaddress
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast
from uuid import UUID

from localcloud.json_values import JsonObject, as_list, as_object, part, parts, strings

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ANNOTATION_KEY = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_PROMETHEUS_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SECRET_VERSION = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
_PORT_OR_RANGE = re.compile(r"\d+(-\d+)?")
_MAX_PORT = 65_535
_MAX_MODE = 0o777
_MAX_VARIABLE_NAME = 32_768
_MAX_ANNOTATION_BYTES = 16 * 1024
_MAX_CONTENT, _MAX_CONTENT_BYTES, _MAX_SUBJECT_BYTES = 8192, 10_240, 10_240
_MAX_COLUMNS = 48
_CENTURY_S = 100 * 365 * 24 * 3600
_MIN_ROTATION_S, _MAX_ROTATION_S = 3600, 3_153_600_000
_UNIQUE_LOCAL = ipaddress.IPv6Network("fd20::/20")
_PRIVATE_ASNS = (range(64_512, 65_535), range(4_200_000_000, 4_294_967_295))
"""RFC 6996."""
_SAME_TEXT = {"compute.v1": "compute.beta"}
_PARTNER_ASN = 16_550
"""The ASN that Google requires with Partner Interconnect (Cloud Router's documentation)."""


_CHECKS: dict[str, Callable[[JsonObject], bool]] = {}
"""Functions that the table can name, by name."""


def _check(function: Callable[[JsonObject], bool]) -> Callable[[JsonObject], bool]:
    """Register a function for the table."""
    _CHECKS[function.__name__.removeprefix("_")] = function
    return function


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A sentence of a document, and the check that a normalized object obeys it. `field` is the location of an error; empty: the object itself."""

    field: str
    sentence: str
    obeyed: Callable[[JsonObject], bool]


def broken(document: str, schema: str, value: JsonObject) -> Iterator[StatedRule]:
    """Yield the rules of a schema, such as `Secret` of `secretmanager.v1`, that an object breaks."""
    for rule in rules().get(f"{_SAME_TEXT.get(document, document)} {schema}", ()):
        if not rule.obeyed(value):
            yield rule


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _seconds(text: object) -> float:
    return float(str(text).removesuffix("s"))


@_check
def _annotations_named(secret: JsonObject) -> bool:
    return all(_ANNOTATION_KEY.fullmatch(key) for key in part(secret, "annotations"))


@_check
def _annotations_small(secret: JsonObject) -> bool:
    sizes = (len(key.encode()) + len(str(value).encode()) for key, value in part(secret, "annotations").items())
    return sum(sizes) < _MAX_ANNOTATION_BYTES


@_check
def _aliases_named(secret: JsonObject) -> bool:
    return all(alias[:1].isalpha() and alias not in {"latest", "NEW"} for alias in part(secret, "versionAliases"))


@_check
def _rotation_period(rotation: JsonObject) -> bool:
    period = rotation.get("rotationPeriod")
    return period is None or _MIN_ROTATION_S <= _seconds(period) <= _MAX_ROTATION_S


@_check
def _short_name(variable: JsonObject) -> bool:
    return len(variable.get("name") or "") <= _MAX_VARIABLE_NAME


@_check
def _secret_items(source: JsonObject) -> bool:
    return all(item.get("path") and item.get("version") for item in parts(source, "items"))


@_check
def _conditions_have_version_3(policy: JsonObject) -> bool:
    return policy.get("version") == 3 or not any(binding.get("condition") for binding in parts(policy, "bindings"))  # noqa: PLR2004 - as in the sentence


@_check
def _bindings_have_members(policy: JsonObject) -> bool:
    return all(binding.get("members") for binding in parts(policy, "bindings"))


@_check
def _protocols(firewall: JsonObject) -> bool:
    return all(item.get("IPProtocol") for key in ("allowed", "denied") for item in parts(firewall, key))


@_check
def _ports(firewall: JsonObject) -> bool:
    items = [item for key in ("allowed", "denied") for item in parts(firewall, key)]
    return all(_PORT_OR_RANGE.fullmatch(str(port)) for item in items for port in strings(item, "ports"))


@_check
def _firewall_log(log: JsonObject) -> bool:
    return not log.get("metadata") or bool(log.get("enable"))


@_check
def _unique_local(network: JsonObject) -> bool:
    try:
        block = ipaddress.IPv6Network(network.get("internalIpv6Range") or "fd20::/48")
    except ValueError:
        return False
    return block.prefixlen == 48 and block.subnet_of(_UNIQUE_LOCAL)  # noqa: PLR2004 - as in the sentence


@_check
def _private_asn(bgp: JsonObject) -> bool:
    asn = int(bgp.get("asn") or _PARTNER_ASN)
    return asn == _PARTNER_ASN or any(asn in private for private in _PRIVATE_ASNS)


@_check
def _dynamic_minimum(nat: JsonObject) -> bool:
    least = int(nat.get("minPortsPerVm") or 32)
    return not nat.get("enableDynamicPortAllocation") or (least >= 32 and _power_of_two(least))  # noqa: PLR2004 - as in the sentence


@_check
def _dynamic_maximum(nat: JsonObject) -> bool:
    most, least = int(nat.get("maxPortsPerVm") or 0), int(nat.get("minPortsPerVm") or 0)
    return not (nat.get("enableDynamicPortAllocation") and most) or (_power_of_two(most) and most > (least or 63))


@_check
def _automatic_addresses(nat: JsonObject) -> bool:
    return nat.get("natIpAllocateOption") != "AUTO_ONLY" or not nat.get("natIps")


def _lifecycle_rules(bucket: JsonObject) -> list[JsonObject]:
    return [as_object(rule) for rule in as_list(part(bucket, "lifecycle").get("rule"))]


@_check
def _storage_classes(bucket: JsonObject) -> bool:
    actions = [part(rule, "action") for rule in _lifecycle_rules(bucket)]
    return all(action.get("type") != "SetStorageClass" or action.get("storageClass") for action in actions)


@_check
def _noncurrent_days(bucket: JsonObject) -> bool:
    conditions = [part(rule, "condition") for rule in _lifecycle_rules(bucket)]
    return all(int(condition.get("daysSinceNoncurrentTime") or 0) >= 0 for condition in conditions)


@_check
def _retention(bucket: JsonObject) -> bool:
    period = part(bucket, "retentionPolicy").get("retentionPeriod")
    return period is None or 0 < int(period) < _CENTURY_S


@_check
def _tpu_block(node: JsonObject) -> bool:
    try:
        return ipaddress.ip_network(node.get("cidrBlock") or "10.0.0.0/29").prefixlen == 29  # noqa: PLR2004 - as in the sentence
    except ValueError:
        return False


@_check
def _kept_versions(policy: JsonObject) -> bool:
    return not policy.get("mostRecentVersions") or policy.get("action") == "KEEP"


@_check
def _cleanup_names(repository: JsonObject) -> bool:
    return all(len(key) < 128 for key in part(repository, "cleanupPolicies"))  # noqa: PLR2004 - as in the sentence


@_check
def _secret_version(login: JsonObject) -> bool:
    return (
        _SECRET_VERSION.fullmatch(login.get("passwordSecretVersion") or "projects/p/secrets/s/versions/1") is not None
    )


@_check
def _nat_name(nat: JsonObject) -> bool:
    return _NAME.fullmatch(nat.get("name") or "") is not None


@_check
def _container_port(port: JsonObject) -> bool:
    return 0 < int(port.get("containerPort", 8080)) <= _MAX_PORT


@_check
def _network_or_subnetwork(interface: JsonObject) -> bool:
    return bool(interface.get("network") or interface.get("subnetwork"))


@_check
def _default_mode(source: JsonObject) -> bool:
    return 0 <= int(source.get("defaultMode") or 0) <= _MAX_MODE


@_check
def _upstream_policies(repository: JsonObject) -> bool:
    return repository.get("mode", "STANDARD_REPOSITORY") != "STANDARD_REPOSITORY" or not part(
        repository, "virtualRepositoryConfig"
    ).get("upstreamPolicies")


@_check
def _mosaic_columns(layout: JsonObject) -> bool:
    return 1 <= int(layout.get("columns") or 0) <= _MAX_COLUMNS


@_check
def _mosaic_tiles(layout: JsonObject) -> bool:
    columns = int(layout.get("columns") or 0)
    places = [(int(tile.get("xPos") or 0), int(tile.get("width") or 0)) for tile in parts(layout, "tiles")]
    return all(left >= 0 and left + width <= columns for left, width in places)


@_check
def _documentation_content(documentation: JsonObject) -> bool:
    content = str(documentation.get("content") or "")
    return len(content) <= _MAX_CONTENT and len(content.encode()) <= _MAX_CONTENT_BYTES


@_check
def _documentation_subject(documentation: JsonObject) -> bool:
    return len(str(documentation.get("subject") or "").encode()) <= _MAX_SUBJECT_BYTES


@_check
def _alert_rule_named(condition: JsonObject) -> bool:
    return not condition.get("alertRule") or _PROMETHEUS_LABEL.fullmatch(condition["alertRule"]) is not None


@_check
def _promql_labels_named(condition: JsonObject) -> bool:
    return all(_PROMETHEUS_LABEL.fullmatch(name) for name in part(condition, "labels"))


def _usable_uuid(text: str) -> bool:
    try:
        return UUID(text).int != 0
    except ValueError:
        return False


@cache
def rules() -> Mapping[str, tuple[StatedRule, ...]]:
    """Return the rules of each document and schema. A rule sees the object after type checks."""
    text = (files("localcloud.rest") / "data" / "stated_rules.toml").read_text(encoding="utf-8")
    found: defaultdict[str, list[StatedRule]] = defaultdict(list)
    for row in cast("list[JsonObject]", tomllib.loads(text)["rule"]):
        rule = StatedRule(row["field"], row["sentence"], _test(row))
        for schema in row["of"]:
            found[schema].append(rule)
    return {schema: tuple(of_schema) for schema, of_schema in found.items()}


def _test(row: JsonObject) -> Callable[[JsonObject], bool]:
    """Return the check that a table row describes."""
    key = str(row["field"])
    match row:
        case {"check": name}:
            return _CHECKS[name]
        case {"given": given}:
            return lambda value: bool(value.get(given))
        case {"present": present}:
            return lambda value: present in value
        case {"within": _} | {"least": _} | {"longest": _}:
            return _limit(key, row)
        case {"not_with": others}:
            return lambda value: not value.get(key) or not any(value.get(other) for other in others)
        case {"needs": [first, second]}:
            return lambda value: not value.get(first) or bool(value.get(second))
        case _:
            raise ValueError(f"The rule of {row['of']} and {key!r} has no check.")


def _limit(key: str, row: JsonObject) -> Callable[[JsonObject], bool]:
    """Return the check of a field's number or length."""
    match row:
        case {"within": [low, high]}:
            # A missing number is the default. So is 0, which protocol buffers cannot distinguish from a missing one.
            return lambda value: not value.get(key) or low <= int(value[key]) <= high
        case {"least": least}:
            return lambda value: int(value.get(key) or 0) >= least
        case {"longest": longest}:
            return lambda value: len(str(value.get(key) or "")) <= longest
        case _:
            raise ValueError(f"The rule of {row['of']} and {key!r} has no limit.")


PAGE_SIZE = "Requested page size cannot exceed 200."
REQUEST_ID = "The request ID must be a valid UUID with the exception that zero UUID is not supported (00000000-0000-0000-0000-000000000000)."
_MAX_PAGE = 200


def broken_parameter(method: str, name: str, value: object) -> str:
    """Return the sentence that a method's parameter breaks, or an empty text."""
    if (method, name) == ("serviceusage.services.list", "pageSize") and isinstance(value, int) and value > _MAX_PAGE:
        return PAGE_SIZE
    if method.startswith("compute.") and name == "requestId" and not _usable_uuid(str(value)):
        return REQUEST_ID
    return ""
