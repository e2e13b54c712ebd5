"""What answers the questions: from a stack's outputs and the server's own report."""

from contracts.outputs import StackOutputs
from loadtest.server import ServerInfo
from planning.data.checkpoints import find_checkpoint
from scripts.cli.measured.identity import deployed_identity
from scripts.quality.results import ServedDeployment

_AUTO_KV: tuple[object, ...] = (None, "auto")


def served_of(info: ServerInfo, stack: str | None, outputs: StackOutputs | None) -> ServedDeployment:
    """Return the deployment behind a server, as far as it is known."""
    if outputs is None:
        return ServedDeployment(
            model=info.model,
            max_model_len=info.max_model_len,
            vllm_version=info.version,
            simulated=info.simulated,
        )
    identity = deployed_identity(outputs, info.simulated)
    checkpoint = find_checkpoint(outputs.model)
    weights = outputs.vllm.get("quantization") or (checkpoint.scheme if checkpoint else None)
    kv_cache = outputs.vllm.get("kvCacheDtype")
    return ServedDeployment(
        model=info.model,
        max_model_len=info.max_model_len,
        vllm_version=info.version,
        simulated=info.simulated,
        stack=stack,
        checkpoint=outputs.model,
        adapter=info.model if outputs.features and info.model in outputs.features.adapters else None,
        weights=None if weights is None else str(weights),
        kv_cache="bf16" if kv_cache in _AUTO_KV else str(kv_cache),
        accelerator=outputs.plan.accelerator,
        image=outputs.image,
        usd_per_hour=outputs.plan.cost.usd_per_hour,
        image_digest=identity.image_digest,
        settings_sha256=identity.settings_sha256,
    )
