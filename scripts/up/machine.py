"""Request of a restart: a new nonce in its metadata, which the agent follows."""

from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Final

from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.guest_attributes import (
    DETAIL_KEY,
    ENDING,
    FAILED,
    PHASE_KEY,
    READY,
    RESTART_KEY,
    SERVING_HASH_KEY,
    reason_of,
)
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.rollout import ROLLOUT_METADATA_KEY, parse_rollout
from gemma_serving.contracts.serving_document import RESTART_METADATA_KEY
from gemma_serving.contracts.three_answers import Unknown
from gemma_serving.engine.locks import require_dead, stack_locks
from gemma_serving.planning.units import duration
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.stack.serves import facts_of_server, old_report, require_deployed

POLL_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMachine:
    """The TPU VM of a stack before its restart, and the effect of the restart."""

    stack: str
    machine: TpuMachine
    effect: str
    pause_s: int | None
    """Planned seconds without a server; None if no `up` was complete, or if it was of a release that did not store them."""
    limit_s: float


def machine_of(stack: str) -> FoundMachine:
    """Return the TPU VM of a stack. Raises CommandRefusedError if it cannot be restarted now."""
    locks = stack_locks(stack)
    if locks:
        require_dead(stack, locks)
    _, facts = facts_of_server(stack)
    found, cloud = facts.recorded, facts.cloud
    if isinstance(facts.server, Unknown):
        raise ScriptError(f"Cannot check the TPU VM of stack {stack}: {facts.server.why}")
    require_deployed(facts)
    if found is None or cloud is None or not cloud.machine:
        raise CommandRefusedError(
            f"Stack {stack} has no TPU VM. `gemma status {stack}` shows what it has. "
            "To restart a Cloud Run service, see docs/cloud-run.md#restart-the-server."
        )
    if text := old_report(facts):
        raise CommandRefusedError(f"{text} The server was not restarted.")
    phase = cloud.phase_now or "down"
    if phase in {"booting", "down", ENDING} or phase.startswith("node "):
        raise CommandRefusedError(
            f"Machine {cloud.machine} is {phase}, so its server cannot be restarted now. `gemma status {stack}` has the next command."
        )
    machine = TpuMachine(api=connect(found.project), name=cloud.machine)
    drain_s = parse_rollout(found.metadata(ROLLOUT_METADATA_KEY)).drain_s
    outputs, declared_s = facts.deployed, as_mapping(found.inputs.get("ready")).get("timeoutS") or 0
    start_s = outputs.smoke.startup_budget_s if outputs is not None else float(str(declared_s))
    restart_s = outputs.plan.startup.restart_s if outputs is not None else None
    pause_s = None if restart_s is None else round(restart_s)
    pause = f"about {duration(pause_s)} (planned)" if pause_s is not None else "an unknown time"
    return FoundMachine(
        stack=stack,
        machine=machine,
        effect=f"{cloud.machine.rpartition('/')[2]} in {machine.zone} is {phase}. Running requests get {drain_s:g} s to finish, "
        f"then requests fail for {pause}.",
        pause_s=pause_s,
        limit_s=start_s + drain_s + 2 * 60,
    )


def _wanted(machine: TpuMachine, owner: Ownership) -> str | None:
    """Return the nonce of the newest restart that was requested. Raises ScriptError if the TPU VM is gone or cannot be read."""
    try:
        return machine.metadata(machine.owned_document(owner)).get(RESTART_METADATA_KEY)
    except CommandRefusedError as error:
        raise ScriptError(str(error)) from None


def restart(found: FoundMachine) -> str:
    """Request the restart, wait, and return what serves. Raises ScriptError if nothing new does."""
    machine = found.machine
    stack = found.stack
    clock = found.machine.clock
    shown = ""
    nonce = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{token_hex(4)}"
    owner = Ownership(project=PRODUCT, stack=stack)
    machine.set_metadata(RESTART_METADATA_KEY, nonce, owner)
    began_s = clock.now_s()
    while (elapsed_s := clock.now_s() - began_s) <= found.limit_s:
        published = machine.published()
        is_taken = published.get(RESTART_KEY) == nonce
        if not is_taken:
            wanted = _wanted(machine, owner)
            if wanted and wanted != nonce:
                nonce = wanted
                print_progress("up", "another restart took its place")
        phase = published.get(PHASE_KEY, "") if is_taken else "waiting for the TPU VM to read the request"
        document = published.get(SERVING_HASH_KEY, "")
        serving = f"Document {document[:12] or 'none'} is serving after {duration(elapsed_s)}."
        if phase == READY and document:
            return serving
        if phase in {FAILED, ENDING}:
            why = reason_of(published.get(DETAIL_KEY, "")).rstrip(".") or "no reason reported"
            raise ScriptError(f"{why}. {serving} Run `gemma logs {stack}` for the server's log.")
        if phase != shown:
            print_progress("up", f"{duration(elapsed_s)}: {phase}")
        shown = phase
        clock.sleep(POLL_S)
    raise ScriptError(
        f"The server was not ready within {duration(found.limit_s)} ({shown}). "
        f"The restart continues on the TPU VM. Run `gemma status {stack}`."
    )
