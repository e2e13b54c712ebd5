"""Form of the server's container: confined, or privileged if `tpu.container` says so."""

from dataclasses import dataclass, replace

from contracts.guest_attributes import CONFINED, CONTAINER_KEY, EXPOSED, PRIVILEGED
from vm_agent.base import ServingError
from vm_agent.confinement import Container, accelerator_devices, confined, is_device_error, privileged
from vm_agent.containers import ContainerState, container_log, container_state
from vm_agent.follow import LatestDocument
from vm_agent.kept import Assignment, KeptState
from vm_agent.metadata_guard import MetadataGuard
from vm_agent.publishing import PhasePublisher

SET_PRIVILEGED = "set tpu.container: privileged"


@dataclass
class ContainerForm:
    """Selector of the next container's form."""

    latest: LatestDocument
    publisher: PhasePublisher
    kept: KeptState
    guard: MetadataGuard
    started: "Container | None" = None
    """Container started by the current attempt."""

    def choose(self, assignment: Assignment) -> Container:
        """Return the form of the next container. Raises ServingError if a confined one has no device."""
        shm_size_gib, devices = assignment.document.shm_size_gib, accelerator_devices()
        if self.latest.limits().is_privileged:
            return privileged(shm_size_gib)
        if not devices:
            raise ServingError(f"No accelerator device was found below /dev: {SET_PRIVILEGED}.", retry=False)
        options, exposure = self.guard.options(assignment.document)
        form = confined(devices, shm_size_gib)
        return replace(
            form, options=(*form.options, *options), label=EXPOSED if exposure else CONFINED, reason=exposure
        )

    def explained(self, problem: ServingError, *, was_ready: bool) -> ServingError:
        """Return the error, with the setting to change if a confined server could not use a device.

        It is the last attempt on a machine where no server was ever ready. Where one was, the usual restarts follow.
        """
        if self.started is None or self.started.label == PRIVILEGED or was_ready:
            return problem
        try:
            state = container_state()
        except ServingError:
            return problem
        is_running = state is not None and state.running
        if is_running or not is_device_error([*container_log(), str(problem)]):
            return problem
        text = f"{problem} The confined server could not use the accelerator: {SET_PRIVILEGED}."
        return ServingError(text, problem.log_lines, retry=bool(self.kept.documents()))

    def adopt(self, state: ContainerState) -> None:
        """Publish the form of a container that an earlier agent started."""
        label = state.form if state.form in {CONFINED, EXPOSED} else PRIVILEGED
        found = Container((), label, "" if label == CONFINED else "started before this agent")
        self.started = None if label == PRIVILEGED else found
        if label == CONFINED:
            self.guard.keep()
        self.publisher.set_fact(CONTAINER_KEY, found.words)
