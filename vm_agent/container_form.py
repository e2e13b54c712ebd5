"""Form of the server's container: confined, or privileged if this machine has recorded that it needs that."""

from dataclasses import dataclass, replace

from contracts.guest_attributes import CONFINED, CONTAINER_KEY, EXPOSED, PRIVILEGED
from vm_agent.base import ServingError
from vm_agent.confinement import Container, accelerator_devices, confined, container_words, device_problem, privileged
from vm_agent.containers import ContainerState, container_log, container_state
from vm_agent.follow import Assignment, LatestDocument
from vm_agent.kept import KeptState
from vm_agent.metadata_guard import MetadataGuard
from vm_agent.publishing import PhasePublisher


@dataclass
class ContainerForm:
    """Selector of the next container's form. Also knows the form of the current one."""

    latest: LatestDocument
    publisher: PhasePublisher
    kept: KeptState
    guard: MetadataGuard
    started: "Container | None" = None
    """Container started by the current attempt."""

    def choose(self, assignment: Assignment) -> Container:
        """Return the form of the next container: confined, unless the settings or this machine's record require otherwise."""
        shm_size_gib, devices = assignment.document.shm_size_gib, accelerator_devices()
        reason = self.kept.container.reason_for(assignment.text_hash)
        if self.latest.limits().is_privileged:
            reason = "set by tpu.container"
        elif not devices:
            reason = "no accelerator device was found below /dev"
        if reason:
            return privileged(reason, shm_size_gib)
        options, exposure = self.guard.options(assignment.document)
        form = confined(devices, shm_size_gib)
        return replace(form, options=(*form.options, *options), exposure=exposure)

    def falls_back(self, assignment: Assignment, problem: ServingError, *, was_ready: bool) -> bool:
        """Return whether the next attempt is privileged, because a confined server stopped before any was ready on this machine.

        Such a stop costs only this attempt. A stop with another known cause changes nothing. A stop without a known cause
        affects only its document, until a privileged server is ready.
        """
        started, history = self.started, self.kept.container
        if started is None or not started.is_confined or was_ready or history.is_proven:
            return False
        if self.latest.is_newer_than(assignment.version):
            return False
        try:
            state = container_state()
        except ServingError:
            return False
        if state is not None and state.running:
            return False
        verdict = device_problem([*container_log(), str(problem)], state.exit_code if state else 1)
        if verdict is False:
            return False
        cause = "could not use the accelerator" if verdict else "stopped before it was ready, with no cause in its log"
        reason = f"the confined server {cause}: {str(problem)[-200:]}"
        self.kept.keep_fallback(self.publisher.remove_secrets(reason), assignment.text_hash, is_certain=verdict is True)
        self.publisher.report(f"Restarting the server with --privileged: {reason}")
        return True

    def adopt(self, assignment: Assignment, state: ContainerState) -> None:
        """Publish the form of a container that an earlier agent started."""
        since = "started before this agent"
        if state.form in {CONFINED, EXPOSED}:
            self.started = confined(accelerator_devices(), assignment.document.shm_size_gib)
            words = container_words(state.form, "" if state.form == CONFINED else since)
        else:
            words = container_words(PRIVILEGED, self.kept.container.reason_for(assignment.text_hash) or since)
        if state.form == CONFINED:
            self.guard.keep()
        self.publisher.set_fact(CONTAINER_KEY, words)
