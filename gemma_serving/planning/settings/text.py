"""Types of settings: text that matches a pattern, numbers above 0, and quantities with a unit."""

import re
from collections.abc import Mapping
from typing import Annotated

from gemma_serving.contracts.labels import is_reserved
from gemma_serving.planning.settings.annotations import LARGEST, Quantity, matching
from gemma_serving.planning.settings.words import AfterValidator, BeforeValidator, Field
from gemma_serving.planning.units import DURATION_PATTERN, format_duration, parse_duration_s

_PATH = r"^((https://\S+/)?projects/[^/\s]+/"
_NAME = r"/)?[a-z]([a-z0-9-]*[a-z0-9])?$"
ProjectId = Annotated[
    str,
    matching(
        r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", "a project id: 6 to 30 characters of a-z, 0-9 and -, starting with a letter"
    ),
]
ModelId = Annotated[str, matching(r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", "a Hugging Face id", "google/gemma-4-E2B-it")]
Commit = Annotated[
    str,
    matching(
        r"^[0-9a-f]{40}$",
        "the 40 hexadecimal digits of a commit (branches and tags can move)",
        "905e84b50c4d2a365ebde34e685027578e6728db",
    ),
]
Zone = Annotated[str, matching(r"^[a-z]+(-[a-z]+)+[0-9]+-[a-z]$", "a zone", "us-east5-a")]
Region = Annotated[str, matching(r"^[a-z]+(-[a-z]+)+[0-9]+$", "a region", "us-east4")]
AcceleratorType = Annotated[str, matching(r"^(v|tpu)[0-9]+[a-z]*-[0-9]+$", "a slice", "v6e-4")]
Network = Annotated[
    str,
    matching(
        _PATH + "global/networks" + _NAME, "a name or self link", "projects/my-project/global/networks/my-network"
    ),
]
Subnetwork = Annotated[
    str,
    matching(
        _PATH + r"regions/[^/\s]+/subnetworks" + _NAME,
        "a name or self link",
        "projects/my-project/regions/us-east5/subnetworks/my-subnetwork",
    ),
]
Repository = Annotated[
    str,
    matching(
        r"^([a-z0-9-]+-docker\.pkg\.dev(/[a-z0-9._-]+){3,}|[a-z0-9_-]+(/[a-z0-9._-]+)?)$",
        "LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE in Artifact Registry, or a repository of Docker Hub",
        "vllm/vllm-openai",
    ),
]
Digest = Annotated[str, matching(r"^sha256:[0-9a-f]{64}$", "sha256: and 64 hexadecimal digits")]
DockerUser = Annotated[str, matching(r"^[a-z0-9][a-z0-9_-]{1,62}$", "a Docker Hub user name", "someone")]
TunnelRole = Annotated[
    str,
    matching(
        r"^((projects/[a-z][a-z0-9-]{4,28}[a-z0-9]|organizations/[0-9]+)/roles/)?[A-Za-z0-9_.]{3,64}$",
        "a custom role: ID, projects/P/roles/ID or organizations/NUMBER/roles/ID,",
        "gemmaTunnel",
    ),
]
RuntimeVersion = Annotated[
    str, matching(r"^(https://)?[A-Za-z0-9][A-Za-z0-9._/:-]*$", "a TPU VM image", "v2-alpha-tpuv6e")
]
_MEMBER = r"^(user|group|serviceAccount|domain):[A-Za-z0-9@._%+'-]+$"
Member = Annotated[str, matching(_MEMBER, "a member", "user:name@example.com")]
Invoker = Annotated[str, matching(_MEMBER, "a member (to allow the public, set public: true)", "user:name@example.com")]
MountOption = Annotated[str, matching(r"^[a-z-]+(=\S+)?$", "a gcsfuse option", "file-mode=444")]
BucketName = Annotated[str, matching(r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", "a bucket name", "my-models")]
BucketLocation = Annotated[str, matching(r"^[A-Za-z][A-Za-z0-9-]*$", "a region", "us-east4")]
_LETTERS = "lower-case letters, digits and hyphens, starting with a letter,"
ServiceName = Annotated[str, matching(r"^[a-z]([a-z0-9-]{0,47}[a-z0-9])?$", f"up to 49 {_LETTERS}", "my-server")]
NetworkName = Annotated[str, matching(r"^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$", f"up to 53 {_LETTERS}", "my-network")]
"""Google allows 63; the longest suffix of a firewall rule has 10."""
ResourceName = Annotated[str, matching(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", f"up to 63 {_LETTERS}", "my-server")]
QueuedResourceId = Annotated[str, matching(r"^[A-Za-z0-9_.~+%-]+$", "an id of letters, digits and hyphens", "my-tpu")]
SecretId = Annotated[str, matching(r"^[A-Za-z0-9_-]{1,255}$", "1 to 255 letters, digits, hyphens and underscores")]
AccountEmail = Annotated[
    str, matching(r"^[^\s:@]+@[^\s:@]+$", "an e-mail address", "server@my-project.iam.gserviceaccount.com")
]
Grantee = Annotated[str, matching(r"^[A-Za-z]+:\S+$", "a member", "group:name@example.com")]
MountPath = Annotated[
    str, matching(r"^(?!/(dev|proc|sys)(/|$))(/[\w.-]+)+$", "an absolute path below /", "/mnt/models")
]
ImageByDigest = Annotated[
    str, matching(r"^.+@sha256:[0-9a-f]{64}$", 'a reference by digest. Replace its tag with "@sha256:..."')
]
PortText = Annotated[str, matching(r"^[0-9]{1,5}(-[0-9]{1,5})?$", "a port or a range as text", "443")]
Port = Annotated[int, Field(ge=1, le=65_535)]
_SET_BY_CLOUD_RUN = "PORT|K_SERVICE|K_REVISION|K_CONFIGURATION"
Variable = Annotated[
    str, matching(rf"^(?!({_SET_BY_CLOUD_RUN})$)[A-Za-z_]\w*$", "a variable that Cloud Run does not set")
]
_FOLDER = r"(?!\.\.?(/|$))[A-Za-z0-9._-]+"
Prefix = Annotated[str, matching(rf"^/*({_FOLDER}(/{_FOLDER})*/*)?$", "a folder", "models/gemma-4-E2B-it")]
ManifestHash = Annotated[
    str, matching(r"^sha256:[0-9a-f]{64}$", "sha256: and the 64 hexadecimal digits that gemma stage_model prints")
]
ProjectPath = Annotated[
    str,
    matching(
        r"^(?!/)(?!(.*/)?\.\.(/|$))[A-Za-z0-9._/-]{1,255}$",
        "a path inside the project, without .., of up to 255 characters,",
        "models/other/config.json",
    ),
]
SecretVersion = Annotated[
    str,
    matching(
        r"^projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}/versions/[1-9][0-9]*$",
        "a version in Secret Manager by its number",
        "projects/my-project/secrets/hf-token/versions/1",
    ),
]
LabelKey = Annotated[
    str,
    matching(r"^[a-z][a-z0-9_-]{0,62}$", "a key of 1 to 63 characters of a-z, 0-9, - and _, starting with a letter"),
]
LabelValue = Annotated[str, matching(r"^[a-z0-9_-]{0,63}$", "a value of up to 63 characters of a-z, 0-9, - and _")]


def _not_reserved(labels: Mapping[str, str]) -> Mapping[str, str]:
    reserved = next((key for key in sorted(labels) if is_reserved(key)), None)
    if reserved is not None:
        raise ValueError(f'"{reserved}" is set by this project; choose another key')
    return labels


NOT_RESERVED = AfterValidator(_not_reserved)
Labels = Annotated[Mapping[LabelKey, LabelValue], NOT_RESERVED]
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
PositiveNumber = Annotated[float, Field(gt=0, le=LARGEST)]
FromZero = Annotated[int, Field(ge=0, le=LARGEST)]
NumberFromZero = Annotated[float, Field(ge=0, le=LARGEST)]

_MEMORY_UNITS_MIB = {"Gi": 1024, "Mi": 1}
_MEMORY_PATTERN = r"^([0-9]+)(Gi|Mi)$"


def parse_memory_mib(value: object) -> int:
    """Return the MiB of a size such as "32Gi" or "512Mi". Raises ValueError for anything else, including a bare number or "GB"."""
    found = re.fullmatch(_MEMORY_PATTERN, value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a memory size needs its binary unit, for example "32Gi" or "512Mi"')
    return int(found.group(1)) * _MEMORY_UNITS_MIB[found.group(2)]


def format_memory(mib: int) -> str:
    """Return a memory size in MiB as Kubernetes-style APIs take it, such as "32Gi"."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


DURATION = Quantity(parse_duration_s, format_duration, DURATION_PATTERN, ("90s", "4h"))
MEMORY = Quantity(parse_memory_mib, format_memory, _MEMORY_PATTERN, ("512Mi", "32Gi"))
DurationS = Annotated[int, Field(ge=0), BeforeValidator(DURATION)]
"""Seconds, written with a unit in the file."""
MemoryMib = Annotated[int, Field(ge=0), BeforeValidator(MEMORY)]
"""MiB, written with a unit in the file."""
