"""`extraArgs` as the image's vLLM parses them."""

from collections.abc import Sequence

from gemma_serving.planning.model.support import version_in_use
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.server_flags import FlagTable, ServerArgument, flag_table, parse_arguments


def flags_of(resolved: Resolved) -> FlagTable:
    """Return the flags of the deployment's image."""
    return flag_table(version_in_use(resolved.accelerator, resolved.deployment.image_version) or None)


def extra_arguments(resolved: Resolved) -> tuple[ServerArgument, ...]:
    """Return the arguments in order; empty without any."""
    words = resolved.deployment.vllm.extra_args
    return parse_arguments(words, flags_of(resolved)) if words else ()


def value_of_flag(read: Sequence[ServerArgument], flag: str) -> tuple[str, ...] | None:
    """Return the words of a flag's last use, empty for a switch; None if it is absent or turned off."""
    found = next((one for one in reversed(read) if one.name == flag), None)
    return None if found is None or found.is_off or found.problem else found.value
