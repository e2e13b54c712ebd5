"""The planner's input: the blocks of a stack's settings, which may be empty, and facts that are not settings."""

import dataclasses
from typing import Any, Final, Literal

from msgspec import Struct, structs

from gemma_serving.contracts.quotas import Quotas
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.image import NO_IMAGE
from gemma_serving.planning.settings.observability import AlertSettings, collects
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_args import BLOCK_KEYS, KEY_OF

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
NO_SETTINGS: Final = Settings(project="", target="tpu", model="", image=NO_IMAGE, alerts=AlertSettings(enabled=False))
"""The settings of a question without a stack: empty, and without the alerts that a stack has. The platform is a fact; nothing reads the target."""


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


FACTS: Final = frozenset(Facts.__struct_fields__)


class Question(Struct, frozen=True):
    """The complete input of the planner. Only `model` and an accelerator are required.

    Names (model, accelerator, platform, quantization) are case-insensitive and accept common spellings; `plan` resolves
    them and raises `planning.PlanningError` with one sentence if a name is unknown or two settings conflict.
    """

    settings: Settings = NO_SETTINGS
    """The blocks of a stack's file, as they are. Without a stack: what was asked, and recommended values for the rest.

    After a change, `target`, `weights` and what follows from them are those of the file: the platform and the mode are facts.
    """
    facts: Facts = Facts()

    def changed(self, **values: Any) -> "Question":  # noqa: ANN401 - of any setting or fact
        """Return the question with other settings and facts, by name."""
        settings = {name: value for name, value in values.items() if name not in FACTS}
        facts = {name: value for name, value in values.items() if name in FACTS}
        return Question(
            dataclasses.replace(self.settings, **settings) if settings else self.settings,
            structs.replace(self.facts, **facts) if facts else self.facts,
        )

    @property
    def is_of_stack(self) -> bool:
        """True if the settings are those of a stack."""
        return bool(self.settings.project)

    @property
    def tpu(self) -> TpuSettings:
        """The block of the TPU; an empty one without it."""
        return self.settings.tpu or NO_TPU

    @property
    def cloud_run(self) -> CloudRunSettings:
        """The block of the service; an empty one without it."""
        return self.settings.cloud_run or NO_SERVICE

    def vllm_key(self, name: str) -> str:
        """Return the key of an option of vLLM that the settings use: its own, or a block's."""
        return f"vllm.{BLOCK_KEYS[name] if name in self.settings.vllm_in_blocks else KEY_OF[name]}"

    @property
    def accelerator_name(self) -> str:
        """Name of the accelerator as it was given, or of the platform's block; empty if neither names one."""
        if self.facts.accelerator:
            return self.facts.accelerator
        gpu, slice_type = self.cloud_run.gpu, self.tpu.accelerator_type
        if self.facts.platform == "cloud-run":
            return gpu or slice_type
        return slice_type or gpu

    @property
    def image_version(self) -> str | None:
        """VLLM version in the image; None for the default image's version, empty if unknown."""
        return None if self.settings.image.is_default else self.settings.image.version or ""

    def collects_on(self, platform: str) -> bool:
        """Return whether a collector of metrics runs next to the server on a platform."""
        return collects(self.settings.alerts, self.settings.metrics, platform)
