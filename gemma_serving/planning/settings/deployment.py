"""The planner's input: the blocks of a stack's settings, which may be empty, and facts that are not settings."""

from typing import Annotated, Final, Literal

from msgspec import Struct

from gemma_serving.contracts.quotas import Quotas
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.settings.annotations import LARGEST
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.image import ImageSettings
from gemma_serving.planning.settings.observability import AlertSettings, MetricsSettings, SmokeSettings, collects
from gemma_serving.planning.settings.text import DurationS
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_args import BLOCK_KEYS, KEY_OF, VllmOptions
from gemma_serving.planning.settings.words import Field
from gemma_serving.planning.settings.workload import Workload

Platform = Literal["tpu-vm", "cloud-run", "gce", "own"]
"""`own`: a machine that Google does not offer, described by its specifications (`planning.machine.devices`)."""
WeightsMode = Literal["hub", "disk", "memory", "fuse", "fuse-buffered", "fuse-cached", "streamer", "image"]
"""Source of the server's weights at startup.

`hub`: downloaded from Hugging Face; `disk`: copied from the bucket to a local disk first; `memory`: copied from the bucket to
shared memory first; `fuse`, `fuse-buffered`, `fuse-cached`: read through a Cloud Storage FUSE mount, plain, with buffered reads,
or through a file cache with parallel downloads; `streamer`: vLLM's runai_streamer reads gs://; `image`: part of the image.
"""


NO_TPU: Final = TpuSettings(accelerator_type="", zones=(), max_run_duration_s=14_400)
"""The block of a question that names no TPU: empty where a stack has to set a value."""
NO_SERVICE: Final = CloudRunSettings(
    region="", gpu="", cpu=0, memory_mib=0, concurrency=0, max_instances=1, request_timeout_s=0
)
"""The block of a question that names no service: empty or 0 where a stack has to set a value, or where it does not matter."""


class Facts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a question that is not settings: figures, prices, the date, and platforms without a stack."""

    accelerator: str = ""
    """Accelerator of a question without a block; empty for the block's (`accelerator_name`)."""
    platform: str | None = None
    """None uses the accelerator's only or default platform."""
    weights_mode: WeightsMode | None = None
    """None uses the platform's default: hub on a TPU VM or GCE; fuse-buffered on Cloud Run."""
    has_api_key: bool = False
    """True if the server requires an API key and therefore has the path guard."""
    staged_parts: tuple[str, ...] = ()
    """Drafters and adapters that the server reads from copies in the bucket, by Hugging Face id or gs:// folder."""
    model_spec: ModelSpec | None = None
    """A model outside the catalog (`planning.model.hf_config.model_from_config`)."""
    device: Accelerator | None = None
    """A device by its specifications (`planning.machine.devices.parse_device`), instead of `accelerator`."""
    draft_spec: ModelSpec | None = None
    """Architecture of a draft model outside the catalog."""
    price_book: PriceBook | None = None
    """Prices that replace the shipped prices."""
    quotas: Quotas = ()
    """Cloud Run's quotas in the region that were read. They precede the settings' (`cloudRun.cpuQuota`)."""
    today: str | None = None
    """Today's date, YYYY-MM-DD. The planner has no clock; without a date no price is reported as old."""


class Deployment(Facts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete input of the planner: facts, and settings of a stack with their names and meaning. Only `model` and an accelerator are required.

    The blocks are those of a stack's settings, as they are. None or empty is "recommend" where a stack's block has to set a value.

    Names (model, accelerator, platform, quantization) are case-insensitive and accept common spellings; `plan` resolves
    them and raises `planning.PlanningError` with one sentence if a name is unknown or two settings conflict.
    """

    model: str
    model_revision: str | None = None
    """Commit of the served or staged model's hub repository; empty uses the main branch, None if it does not matter."""
    quantization: str | None = None
    """A scheme of `planning.data.quantization`; None uses the checkpoint's own."""
    vllm: VllmOptions = VllmOptions()
    """Options as set; `planning.question.recommendation` supplies the rest."""
    image: ImageSettings | None = None
    """The server's image; None for the accelerator's default image."""
    tpu: TpuSettings = NO_TPU
    cloud_run: CloudRunSettings = NO_SERVICE
    bucket: BucketSettings = BucketSettings()
    alerts: AlertSettings = AlertSettings(enabled=False)
    """Stacks have alerts by default; a question without a stack has none."""
    metrics: MetricsSettings = MetricsSettings()
    smoke: SmokeSettings = SmokeSettings()
    endpoint_url: str | None = None
    workload: Workload | None = None
    """The clients' workload; None plans only the saturated rate, at `planning.settings.workload.DEFAULT_WORKLOAD`."""
    measured_tok_per_s: Annotated[float, Field(ge=0.001, le=LARGEST)] | None = None
    max_usd: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    max_age_s: DurationS | None = None
    accept_findings: tuple[str, ...] = ()
    provider_keys: tuple[str, ...] = ()
    vllm_in_blocks: tuple[str, ...] = ()

    def vllm_key(self, name: str) -> str:
        """Return the key of an option of vLLM that the settings use: its own, or a block's."""
        return f"vllm.{BLOCK_KEYS[name] if name in self.vllm_in_blocks else KEY_OF[name]}"

    @property
    def accelerator_name(self) -> str:
        """Name of the accelerator as it was given, or of the platform's block; empty if neither names one."""
        if self.accelerator:
            return self.accelerator
        gpu, slice_type = self.cloud_run.gpu, self.tpu.accelerator_type
        if self.platform == "cloud-run":
            return gpu or slice_type
        return slice_type or gpu

    @property
    def image_version(self) -> str | None:
        """VLLM version in the image; None for the default image's version, empty if unknown."""
        if self.image is None or self.image.is_default:
            return None
        return self.image.version or ""

    @property
    def image_supports(self) -> tuple[str, ...]:
        """Precisions that a custom image loads, regardless of `planning.model.support`."""
        return () if self.image is None else self.image.supports

    def collects_on(self, platform: str) -> bool:
        """Return whether a collector of metrics runs next to the server on a platform."""
        return collects(self.alerts, self.metrics, platform)


OF_SETTINGS: Final = tuple(name for name in Deployment.__struct_fields__ if name not in Facts.__struct_fields__)
"""Fields of a question that are settings of a stack, by the same name."""
