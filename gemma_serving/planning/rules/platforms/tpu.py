"""Rules for TPUs: slices, runs, zones, caches, networks and metadata."""

import math
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit, urlunsplit

from gemma_serving.contracts.tunnel_role import SUGGESTED_ID, TunnelRole
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.data.prices import continent_of
from gemma_serving.planning.machine.hardware import tpu_offer
from gemma_serving.planning.question.hub_files import LoadedRepository, hub_files
from gemma_serving.planning.question.releases import STREAMS_ON_TPU, is_known_from
from gemma_serving.planning.rules.alternatives import alternatives_for
from gemma_serving.planning.rules.arguments import arguments_named, kept_arguments
from gemma_serving.planning.rules.platforms.replicas import replicas_remedy
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.google_limits import run_limit_problem
from gemma_serving.planning.settings.vllm_args import LORA_MODULES, TOKENIZER, TOKENIZER_REVISION
from gemma_serving.planning.speed.startup import compile_s_of
from gemma_serving.planning.units import HOUR_S, duration, number_of


@rule("TPU01")
def _slice_parallelism(subject: Subject) -> RuleResult | None:
    resolved, chips = subject.resolved, subject.resolved.accelerator.devices
    used = resolved.tp * resolved.dp
    if used == chips:
        return None
    unit = "chip" if chips == resolved.accelerator.chips else "device"
    set_to = f"vllm.tensorParallelSize is {resolved.tp}"
    if resolved.dp > 1:
        set_to += f" and vllm.dataParallelSize is {resolved.dp}, {used} {unit}s together"

    def remedies() -> Iterator[Remedy]:
        yield Remedy(changes={"vllm.tensor_parallel_size": chips, "vllm.data_parallel_size": None})
        yield replicas_remedy(None)
        if used < chips and chips % resolved.tp == 0 and not resolved.spec.is_moe:
            yield change("vllm.data_parallel_size", chips // resolved.tp)
        if resolved.dp > 1 and chips % resolved.dp == 0:
            yield change("vllm.tensor_parallel_size", None)

    too_few = used > chips
    effect = "The server will not start." if too_few else f"{chips - used} of them will be idle, and are paid for."
    return RuleResult(
        f"{set_to}, but {resolved.accelerator.name} has {number_of(chips, unit)}. {effect}",
        remedies=remedies(),
        last_resorts=alternatives_for(subject) if too_few else (),
        severity="block" if too_few else "warn",
    )


@rule("TPU02")
def _run_duration(subject: Subject) -> RuleResult | None:
    problem = run_limit_problem(subject.resolved.question.tpu)
    if problem is None:
        return None
    message, allowed_s = problem
    price = f"${subject.cost.usd_per_hour * allowed_s / HOUR_S:,.2f}" if subject.cost.is_known else "an unknown amount"
    return RuleResult(
        message,
        remedies=(change("tpu.max_run_duration_s", allowed_s),),
        advice=f"A run of {duration(allowed_s)} costs {price}.",
    )


@rule("TPU04")
def _zones(subject: Subject) -> RuleResult | None:
    tpu, accelerator = subject.resolved.question.tpu, subject.resolved.accelerator
    listed = tpu_offer(accelerator).flex_start_zones
    if not listed or not tpu.has_form("flex-start"):
        return None
    unknown = [zone for zone in tpu.zones if zone not in listed]
    if not unknown:
        return None
    known = tuple(zone for zone in tpu.zones if zone in listed)
    continents = {continent_of(zone) for zone in tpu.zones}
    near = tuple(zone for zone in listed if continent_of(zone) in continents)
    choices = dict.fromkeys(choice for choice in (near, listed) if choice)
    # An existing subnet is in the region of the current zones. Other zones need the stack's own network.
    own_network = {} if tpu.private_google_access is None else {"tpu.existing_network": None}
    return RuleResult(
        f"The Cloud TPU API does not list flex-start {accelerator.generation} for {', '.join(unknown)}. A zone needs the hardware, your "
        "quota and the flex-start offer; many have only two of the three.",
        severity="block" if tpu.api == "cloud-tpu" else "warn",  # no list of Compute Engine's zones is on record
        remedies=(
            *((change("tpu.zones", known),) if known else ()),
            *(Remedy(changes={"tpu.zones": choice, **own_network}) for choice in choices if choice != known),
        ),
        advice="If a zone is newer than this list, accept this finding.",
    )


@rule("TPU06")
def _compile_cache(subject: Subject) -> RuleResult | None:
    if subject.resolved.question.tpu.compile_cache != "off":
        return None
    startup = subject.known_startup
    wait = "everything"
    if startup is not None:
        cached = duration(compile_s_of(subject.resolved, is_cached=True))
        wait = f"for {duration(startup.compile_s)} instead of {cached}"
    return RuleResult(
        f"tpu.compileCache is off. Each restart will compile {wait}.",
        remedies=(change("tpu.compile_cache", "machine"),),
    )


@rule("TPU07")
def _streamer_on_tpu(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if resolved.weights_mode != "streamer":
        return None
    remedies = (Remedy(changes={"vllm.load_format": None, "weights_mode": "disk"}),)
    if not is_known_from(resolved, STREAMS_ON_TPU):
        return RuleResult(
            f"vllm.loadFormat is runai_streamer, but reading gs:// on a TPU needs vLLM {STREAMS_ON_TPU} or later. "
            "The image is older or of unknown version, so the server will not start.",
            remedies=remedies,
        )
    return RuleResult(
        "vllm.loadFormat is runai_streamer, which stores no weights on the TPU VM. Each start will read "
        f"{subject.memory.checkpoint_gib:.1f} GiB from the bucket. Published rates on TPU hosts range from 56 MB/s to "
        f"over 1 GB/s; the plan uses at most {constant('DISK_TO_DEVICE_BYTES_PER_S') / 1e9:g} GB/s, as for a file on the TPU VM.",
        severity="warn",
        remedies=remedies,
    )


@rule("TPU08")
def _shorter_than_a_start(subject: Subject) -> RuleResult | None:
    startup, question = subject.known_startup, subject.resolved.question
    tpu = question.tpu
    if startup is None:
        return None
    boot_s = constant("VM_BOOT_S")
    planned_s, longest_s = boot_s + startup.total_s, boot_s + startup.total_high_s
    times: dict[str, tuple[str, int | None, str]] = {
        "max_age_s": (
            "maxAge",
            question.settings.max_age_s,
            "A guard {} tear the stack down before its server is ready.",
        ),
    }
    if tpu.wait_for == "ready":
        text = "`gemma up` {} fail before the server is ready."
        times["tpu.ready_timeout_s"] = ("tpu.readyTimeout", tpu.ready_timeout_s, text)
    if tpu.has_form("flex-start") or tpu.api == "compute-engine":
        text = "Google {} delete the TPU VM before its server is ready."
        times["tpu.max_run_duration_s"] = ("tpu.maxRunDuration", tpu.max_run_duration_s, text)
    short = {
        path: (key, given_s, text)
        for path, (key, given_s, text) in times.items()
        if given_s is not None and given_s < longest_s
    }
    if not short:
        return None
    is_certain = any(given_s < planned_s for _, given_s, _ in short.values())
    named = " and ".join(f"{key} is {duration(given_s)}" for key, given_s, _ in short.values())
    effects = " ".join(text.format("will" if given_s < planned_s else "may") for _, given_s, text in short.values())
    least_s = math.ceil(longest_s / 60) * 60
    return RuleResult(
        f"{named}, but a start takes {duration(planned_s)}, at most {duration(longest_s)}. {effects}",
        severity="block" if is_certain else "warn",
        remedies=(Remedy(changes=dict.fromkeys(short, least_s)),),
    )


@rule("TPU09")
def _runtime_version(subject: Subject) -> RuleResult | None:
    tpu, accelerator = subject.resolved.question.tpu, subject.resolved.accelerator
    own = tpu_offer(accelerator).runtime_version
    if tpu.api != "cloud-tpu" or tpu.runtime_version in {None, own}:
        return None
    return RuleResult(
        f"tpu.runtimeVersion is {tpu.runtime_version}, but the version for {accelerator.generation} is {own}. With another one, the TPU VM has no "
        "driver for its chips, and the server will not start.",
        remedies=(change("tpu.runtime_version", None),),
        advice="If the version is newer than this list, accept this finding.",
    )


@rule("NET01")
def _localhost(subject: Subject) -> RuleResult | None:
    url = subject.resolved.question.settings.endpoint_url
    parts = urlsplit(url or "")
    if url is None or (parts.hostname or "").lower() != "localhost":
        return None
    port = parts.netloc.lower().rpartition("localhost")[2]
    address = urlunsplit(parts._replace(netloc=f"127.0.0.1{port}"))
    return RuleResult(
        f"endpointUrl is {url}, but localhost may resolve to ::1 first, where vLLM does not listen.",
        remedies=(change("endpoint_url", address),),
    )


@rule("NET02")
def _private_access(subject: Subject) -> RuleResult | None:
    if subject.resolved.question.tpu.private_google_access is not False:
        return None
    return RuleResult(
        "tpu.existingNetwork.privateGoogleAccess is false, but the TPU VM has no external address. It will not be able to pull "
        "the image or the weights.",
        remedies=(change("tpu.existing_network", None),),
        advice="Or enable Private Google Access for the subnet (free of charge) and set tpu.existingNetwork.privateGoogleAccess to true.",
    )


@rule("NET03")
def _hub_without_nat(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    files = tuple(hub_files(resolved))
    if resolved.question.tpu.private_google_access is None or resolved.weights_mode == "hub" or not files:
        return None
    listed = " and ".join(f"the {one.kind} {one.name}" for one in files)
    return RuleResult(
        f"The server downloads {listed} from the Hugging Face hub at each start, because the bucket has no staged "
        "copy. The TPU VM has no external address, and the stack adds Cloud NAT only to its own network. Without "
        "Cloud NAT in the subnet of tpu.existingNetwork, the server will not start.",
        remedies=(change("tpu.existing_network", None), _without_files(subject, files)),
        advice=(
            "Or run gemma stage_model, which copies drafters and adapters to the bucket. If that subnet has Cloud "
            "NAT, accept this finding."
        ),
    )


def _without_files(subject: Subject, files: Sequence[LoadedRepository]) -> Remedy:
    """Return the change that removes the drafter, and the arguments that name a tokenizer or adapters."""
    kinds = {one.kind for one in files}
    changes = dict[str, object]()
    if "drafter" in kinds:
        changes["vllm.speculative_config"] = None
    if "adapter" in kinds and subject.resolved.question.settings.vllm.lora_adapters is not None:
        changes |= {"vllm.lora_adapters": None, "vllm.max_lora_rank": None, "vllm.max_loras": None}
        kinds -= {"adapter"}
    if kinds - {"drafter"}:
        named = {TOKENIZER, TOKENIZER_REVISION, LORA_MODULES}
        changes["vllm.extra_args"] = kept_arguments(subject, arguments_named(subject, named))
    return Remedy(changes=changes)


@rule("SEC03")
def _metadata_keys(subject: Subject) -> RuleResult | None:
    if subject.resolved.question.tpu.ssh == "os-login":
        return None
    return RuleResult(
        "tpu.ssh is metadata-key, and OS Login is off. Anyone with an SSH key in the metadata of the project or "
        "the TPU VM is root on it, and can read the stack's secrets and the token of its service account.",
        remedies=(change("tpu.ssh", "os-login"),),
        advice="Or keep it if a policy or an account outside the organization rules out OS Login.",
    )


@rule("SEC09")
def _tunnel_admins(subject: Subject) -> RuleResult | None:
    tpu = subject.resolved.question.tpu
    if tpu.api != "cloud-tpu" or not tpu.tunnel_members or tpu.tunnel_role:
        return None
    count = len(tpu.tunnel_members)
    whom = f"{count} members" if count > 1 else "1 member"
    command = TunnelRole("projects/YOUR_PROJECT", SUGGESTED_ID).create_command()
    return RuleResult(
        f"tpu.tunnelMembers grants {whom} roles/tpu.admin, which can create, stop and delete every TPU of the "
        "project. A tunnel needs only a custom role with 3 permissions.",
        remedies=(change("tpu.tunnel_role", SUGGESTED_ID),),
        advice=f"Create the role once, before `gemma up`: `{command}`.",
    )
