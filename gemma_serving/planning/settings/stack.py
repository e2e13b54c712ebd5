"""The file of a stack: one frozen model for both targets."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from gemma_serving.contracts.labels import PRODUCT, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.staged_weights import own_folder
from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.settings.accepted import check_accepted
from gemma_serving.planning.settings.annotations import LARGEST, ListOf, Named, OnChange, OneOf
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.docker_hub import DockerHubSettings
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.image import ImageSettings, named_image
from gemma_serving.planning.settings.observability import AlertSettings, MetricsSettings, SmokeSettings, collects
from gemma_serving.planning.settings.secrets import KINDS, SecretKey
from gemma_serving.planning.settings.text import (
    Commit,
    DurationS,
    Labels,
    ModelId,
    Positive,
    ProjectId,
    ProjectPath,
    SecretVersion,
)
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_args import STREAMER, VllmOptions
from gemma_serving.planning.settings.vllm_blocks import OptionsOrBlocks
from gemma_serving.planning.settings.words import AfterValidator, Field, WrapValidator
from gemma_serving.planning.settings.workload import Workload

NAMESPACES: Final = (PRODUCT, "docker", "gcp", "gcp-tpu", "pulumi")
"""Namespaces of the configuration: the project, its providers, and the engine."""
NOT_IN_FILE: Final = ("project", "secrets", "providerKeys", "vllmInBlocks")
"""Fields without a key in the file."""


def _full_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected a full URL such as https://models.example.com")
    return url


def _with_parser(options: VllmOptions) -> VllmOptions:
    if options.enable_auto_tool_choice and not options.tool_call_parser:
        raise ValueError("enableAutoToolChoice needs toolCallParser; for Gemma 4 set toolCallParser: gemma4")
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Block):
    """All settings of a stack. Values of secrets are never part of them."""

    project: ProjectId
    """Google Cloud project, from gcp:project."""
    target: Literal["tpu", "cloud-run"]
    """Platform that the stack runs on."""
    model: ModelId
    """Hugging Face id of the checkpoint. An id missing from docs/reference/checkpoints.md needs `modelConfig`."""
    model_revision: Annotated[Commit | None, OnChange("nothing")] = None
    """Commit of the model on the Hugging Face hub, written by `gemma init` and `gemma stage_model`.

    With weights hub, the server loads this commit even after newer ones are pushed. With weights bucket, `gemma stage_model` copies it and
    `bucket.manifest` pins the server to the copy.
    """
    model_config: Annotated[ProjectPath | None, OnChange("nothing")] = None
    """The checkpoint's config.json, or a folder with it, inside the project. The planner reads dimensions and size from it."""
    draft_config: Annotated[ProjectPath | None, OnChange("nothing")] = None
    """The same for the drafter in `vllm.speculativeConfig`, if the planner does not know it."""
    quantization: Annotated[
        Annotated[str, AfterValidator(OneOf(("bf16", "fp8", "w4a16")))] | None, OnChange("nothing")
    ] = None
    """Precision of the weights. Default: the checkpoint's own."""
    weights: Literal["hub", "bucket", "prefetched-image"] = "hub"
    """Source of the weights at start: the Hugging Face hub, the stack's bucket, or the image (Cloud Run only)."""
    image: Annotated[ImageSettings, WrapValidator(Named(IMAGES, named_image, "repository and digest"))]
    """The server's image: the name of a known image such as `vllm-openai`, or a block for a custom image. Default: the target's image.

    A custom image is a repository of Docker Hub or Artifact Registry, pinned by digest.
    """
    docker_hub: Annotated[DockerHubSettings | None, OnChange("update")] = None
    """Docker Hub account used to pull the image.

    Docker Hub limits pulls without an account. They count against an IP address that you share with others.
    """
    vllm: Annotated[OptionsOrBlocks, AfterValidator(_with_parser)] = field(default_factory=VllmOptions)
    """Options of vLLM. The planner recommends values for options that are not set."""
    tpu: TpuSettings | None = None
    """TPU capacity, and how long to wait for it. Required with target tpu, otherwise rejected."""
    cloud_run: CloudRunSettings | None = None
    """Cloud Run service with one GPU per instance. Required with target cloud-run, otherwise rejected."""
    bucket: BucketSettings = field(default_factory=BucketSettings)
    """Bucket for weights (`weights: bucket`) and for compiled programs (`compileCache: bucket`)."""
    smoke: Annotated[SmokeSettings, OnChange("nothing")] = field(default_factory=SmokeSettings)
    """Threshold of the smoke checks. Default: from the plan."""
    workload: Annotated[Workload | None, OnChange("nothing")] = None
    """Expected requests of clients. With it, the plan predicts latency and price, and the smoke checks expect that speed.

    Without `users` and `ratePerS`, the workload has as many users as the server runs concurrently.
    """
    endpoint_url: Annotated[Annotated[str, AfterValidator(_full_url)] | None, OnChange("nothing")] = None
    """URL at which clients reach the server, for example a load balancer's. Default: the stack's own."""
    measured_tok_per_s: Annotated[Annotated[float, Field(ge=0.001, le=LARGEST)] | None, OnChange("nothing")] = None
    """Measured output rate of all requests together, in tokens per second.

    The planner uses it for the cost per million tokens.
    """
    accept_findings: Annotated[ListOf[str], AfterValidator(check_accepted), OnChange("nothing")] = ()
    """Ids of planner findings that you accept. They are shown and do not block."""
    max_age_s: Annotated[DurationS | None, OnChange("update")] = None
    """Maximum time since the first start of a TPU VM or the service, across TPU VMs.

    `gemma teardown --all --over-limit` tears down stacks that are older.
    """
    max_usd: Annotated[Positive | None, OnChange("update")] = None
    """Maximum cost of the stack in US dollars, at the planner's prices, for all its TPU VMs.

    `gemma teardown --all --over-limit` tears down stacks that cost more.
    """
    alerts: Annotated[AlertSettings, OnChange("update")] = field(default_factory=AlertSettings)
    """Alert policies in Cloud Monitoring.

    Without metrics, only alerts on log lines can fire and, on Cloud Run, those on metrics of the platform.
    """
    metrics: Annotated[MetricsSettings, OnChange("revision")] = field(default_factory=MetricsSettings)
    """OpenTelemetry collector next to the server, which writes metrics to Managed Service for Prometheus."""
    prices: Annotated[ProjectPath | None, OnChange("nothing")] = None
    """JSON file with custom prices, relative to `Pulumi.yaml`. Default: the shipped prices.

    `gemma plan prices` refreshes the shipped prices. `gemma teardown --all --over-limit` uses no price file of a stack.
    """
    labels: Annotated[Labels, OnChange("update")] = field(default_factory=dict[str, str])
    """Custom labels for every resource that supports labels."""
    hf_token_secret: SecretVersion | None = None
    """Existing version in Secret Manager with the Hugging Face token, instead of `hfToken`. Its value never passes through Pulumi."""
    api_key_secret: SecretVersion | None = None
    """Existing version in Secret Manager with the API key, instead of `apiKey`. Its value never passes through Pulumi."""
    secrets: ListOf[SecretKey] = ()
    """Secrets set by value. Pulumi holds the values."""
    provider_keys: ListOf[str] = ()
    """Keys of the provider gcp in the file, without project, region and zone."""
    vllm_in_blocks: ListOf[str] = ()
    """Options of vLLM for which the file uses a block, because messages name the keys that it uses."""

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys, and what to change."""
        return chain(self._of_the_target(), self._unused())

    def _of_the_target(self) -> Iterator[str]:
        """Yield each contradiction of the target to another key, and what to change."""
        given = {"tpu": self.tpu is not None, "cloudRun": self.cloud_run is not None}
        used = "tpu" if self.target == "tpu" else "cloudRun"
        other = "cloudRun" if self.target == "tpu" else "tpu"
        if not given[used]:
            yield f"target {self.target} requires the block {used}"
        if given[other]:
            yield f"target {self.target} does not use the block {other}; remove it or change the target"
        if self.target == "tpu" and self.weights == "prefetched-image":
            yield "weights prefetched-image works on Cloud Run only; for a TPU set weights to hub or bucket"
        needed = "tpu" if self.target == "tpu" else "cuda"
        known = self.image.known
        if known is not None and known.platform != needed:
            yield (
                f"image {known.repository} is a {known.platform} image, but target {self.target} needs a {needed} image; "
                f"set image: {DEFAULT_IMAGES[self.target]}"
            )

    def _unused(self) -> Iterator[str]:
        """Yield each key that another one makes useless, and what to change."""
        if self.model_revision is not None and self.weights == "prefetched-image":
            yield "modelRevision has no effect with weights prefetched-image, because image.digest pins the weights; remove modelRevision"
        idle_s = self.tpu.idle_after_s if self.tpu else None
        if idle_s is not None and self.max_age_s is not None and idle_s >= self.max_age_s:
            yield "tpu.idleAfter must be shorter than maxAge, or the stack's age ends it first; shorten it or remove it"
        mode = self.cloud_run.mount.mode if self.cloud_run else ""
        if mode in {"streamer", "memory"} and self.weights != "bucket":
            yield f"cloudRun.mount.mode {mode} reads weights from the bucket, but weights is {self.weights}; set weights: bucket or remove the mode"
        adapters = self.vllm.lora_adapters or {}
        in_bucket = next((name for name, place in adapters.items() if place.startswith("gs://")), None)
        if in_bucket is not None and self.weights != "bucket":
            yield (
                f"vllm.lora.adapters.{in_bucket} is a folder of a bucket, which vLLM cannot read, but weights is "
                f"{self.weights}; set weights: "
                "bucket, so gemma stage_model copies the adapter"
            )
        if self.docker_hub is not None and self.image.build_context is not None:
            yield "dockerHub has no effect with image.buildContext, because docker pulls with its own login; remove dockerHub"
        if self.docker_hub is not None and not self.image.is_stored:
            yield "dockerHub has no effect with an image of Artifact Registry; remove dockerHub"
        for kind in KINDS:
            if kind.key in self.secrets and self.secret_version(kind.key):
                yield (
                    f"{kind.key} and {kind.reference_key} both set the {kind.what}; keep one of them, for example with "
                    f"`pulumi config rm {kind.key}`"
                )

    @property
    def served_revision(self) -> str | None:
        """Commit that the server downloads from the hub. None: it downloads nothing, or the latest commit of the main branch."""
        return self.model_revision if self.weights == "hub" else None

    @property
    def collects_metrics(self) -> bool:
        """True if a collector of metrics runs next to the server."""
        return collects(self.alerts, self.metrics, "tpu-vm" if self.target == "tpu" else self.target)

    def secret_version(self, key: SecretKey) -> str | None:
        """Return the existing version in Secret Manager that holds a secret, or None."""
        return {"hfToken": self.hf_token_secret, "apiKey": self.api_key_secret}[key]

    def has_secret(self, key: SecretKey) -> bool:
        """Return whether a secret is set, by value or by reference."""
        return key in self.secrets or self.secret_version(key) is not None

    @property
    def service(self) -> CloudRunSettings | None:
        """The block of the Cloud Run service with all its defaults, or None."""
        return self.cloud_run and self.cloud_run.with_defaults(
            mode=self.cloud_run.mount.mode if self.weights == "bucket" else self.weights,
            has_own_bucket=self.bucket.existing is None,
            fetches_media=bool(self.vllm.allowed_media_domains),
        )

    @property
    def capacity(self) -> TpuSettings | None:
        """The block of the TPU with all its defaults, or None."""
        return self.tpu and self.tpu.with_defaults(has_own_bucket=self.bucket.existing is None)

    @property
    def archives_programs(self) -> bool:
        """True if compiled programs are archived in the bucket."""
        block = self.service or self.capacity
        return block is not None and block.compile_cache == "bucket"

    @property
    def uses_bucket(self) -> bool:
        """True if the stack uses a bucket: for weights, compiled programs, or both."""
        return self.weights == "bucket" or self.archives_programs

    @property
    def streams_on_tpu(self) -> bool:
        """True if a TPU server reads its weights directly from the bucket, without a copy on the TPU VM."""
        return self.tpu is not None and self.weights == "bucket" and self.vllm.load_format == STREAMER

    def bucket_name(self, stack: str) -> str:
        """Return the name of the stack's own or existing bucket. Raises NamingError."""
        return self.bucket.existing or Names(project=self.project, stack=stack).bucket

    @property
    def weights_prefix(self) -> str:
        """Folder of the weights in the bucket, without leading and trailing slashes."""
        digest = self.bucket.manifest_hash
        return self.weights_name if digest is None else own_folder(self.weights_name, digest)

    @property
    def weights_name(self) -> str:
        """That folder without the hash: the folder of a copy of the weights, and the base to which staging adds the hash."""
        return (self.bucket.prefix if self.bucket.prefix is not None else self.model.rpartition("/")[2]).strip("/")

    @property
    def limits(self) -> StackLimits:
        """Limits that a guard enforces."""
        idle_after_s = self.tpu.idle_after_s if self.tpu else None
        return StackLimits(max_age_s=self.max_age_s, max_usd=self.max_usd, idle_after_s=idle_after_s)

    @property
    def regions(self) -> tuple[str, ...]:
        """Distinct regions of the stack, in order."""
        if self.tpu is not None:
            return self.tpu.regions
        return (self.cloud_run.region,) if self.cloud_run is not None else ()
