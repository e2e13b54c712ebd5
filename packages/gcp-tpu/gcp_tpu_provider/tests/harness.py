"""The engine's part, in memory: check, preview, diff, create, update, replace, refresh, delete, with a state that survives partial creations."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import provider_pb2

from gcp_tpu_provider import wire
from gcp_tpu_provider.servicer import TpuProvider
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.virtual_time import VirtualClock, VirtualLoop
from gcp_tpu_provider.transport import Pacing

URN = "urn:pulumi:dev::demo::gcp-tpu:index:QueuedResource::serve"
FAST = Pacing(
    poll_first_s=0.0005,
    poll_most_s=0.001,
    appear_s=0.05,
    late_s=0.1,
    delete_s=20,
    operation_s=20,
    retry_first_s=0.001,
    retry_most_s=0.002,
    retry_budget_s=20,
    refusal_budget_s=0.02,
)

Result = TypeVar("Result")


class Aborted(Exception):  # noqa: N818 - what gRPC calls it
    """A call that ended with a status."""

    def __init__(self, code: grpc.StatusCode, message: str, trailing: tuple[tuple[str, bytes], ...]) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.partial: provider_pb2.ErrorResourceInitFailed | None = None
        for key, value in trailing:
            assert key == "grpc-status-details-bin"
            status = status_pb2.Status.FromString(value)
            assert status.message == message
            self.partial = provider_pb2.ErrorResourceInitFailed()
            assert status.details[0].Unpack(self.partial)


class Context:
    """A server's call context, as far as the provider uses it."""

    async def abort(self, code: grpc.StatusCode, message: str, trailing_metadata: Any = ()) -> NoReturn:
        raise Aborted(code, message, tuple(trailing_metadata))


@dataclass
class Entry:
    """One resource of the state file."""

    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    init_errors: list[str] = field(default_factory=list)


@dataclass
class FakeEngine:
    """Drives the provider as the engine does, and keeps the state as the engine does."""

    cloud: FakeTpu
    pacing: Pacing = FAST
    urn: str = URN
    state: Entry | None = None
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    detailed: dict[str, str] = field(default_factory=dict)
    clock: VirtualClock | None = field(default_factory=VirtualClock)
    """The clock of all calls, which goes on from one call to the next. None if the cloud is behind real sockets: the clock would outrun them."""
    waited_s: float = 0
    """Virtual seconds of the last call."""

    def __post_init__(self):
        self.provider = TpuProvider(self.cloud, self.pacing)

        async def show(urn: str, message: str) -> None:
            assert urn == self.urn
            self.lines.append(message)

        async def warn(urn: str, message: str) -> None:
            assert urn == self.urn
            self.warnings.append(message)

        self.provider.engine_log.warn = warn  # type: ignore[method-assign] - as below
        self.provider.engine_log.show = show  # type: ignore[method-assign] - the engine's own end

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        clock = self.clock
        if clock is None:
            return asyncio.run(work)
        began_s = clock.now_s
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
            try:
                return runner.run(work)
            finally:
                self.waited_s = clock.now_s - began_s

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs in the state, which has the resource."""
        assert self.state
        return self.state.outputs

    def check(self, given: dict[str, Any]) -> provider_pb2.CheckResponse:
        olds = wire.write(self.state.inputs if self.state else {})
        request = provider_pb2.CheckRequest(urn=self.urn, olds=olds, news=wire.write(given), randomSeed=b"x" * 32)
        return self.run(self.provider.Check(request, Context()))

    def mistakes(self, given: dict[str, Any]) -> dict[str, str]:
        return {item.property: item.reason for item in self.check(given).failures}

    def inputs(self, given: dict[str, Any]) -> dict[str, Any]:
        checked = self.check(given)
        assert not checked.failures, checked.failures
        return wire.read(checked.inputs)

    def diff(self, inputs: dict[str, Any]) -> provider_pb2.DiffResponse:
        assert self.state
        request = provider_pb2.DiffRequest(
            id=self.state.id,
            urn=self.urn,
            olds=wire.write(self.state.outputs),
            old_inputs=wire.write(self.state.inputs),
            news=wire.write(inputs),
        )
        answer = self.run(self.provider.Diff(request, Context()))
        kind = provider_pb2.PropertyDiff.Kind
        self.detailed = {path: kind.Name(item.kind) for path, item in answer.detailedDiff.items()}
        return answer

    def preview(self, given: dict[str, Any]) -> str:
        """Return create, update, replace or same, as the preview shows it."""
        self.begin()
        inputs = self.inputs(given)
        if self.state is None:
            self.run(
                self.provider.Create(
                    provider_pb2.CreateRequest(urn=self.urn, properties=wire.write(inputs), preview=True), Context()
                )
            )
            return "create"
        answer = self.diff(inputs)
        if answer.replaces:
            assert answer.deleteBeforeReplace
            return "replace"
        return "update" if answer.changes == provider_pb2.DiffResponse.DIFF_SOME or self.state.init_errors else "same"

    def up(self, given: dict[str, Any], *, timeout_s: float = 0) -> str:
        """Do what the preview says; raises Aborted after the state was kept as the engine keeps it."""
        operation = self.preview(given)
        inputs = self.inputs(given)
        self.ops.append(operation)
        if operation == "replace":
            self._delete()
            inputs = self.inputs(given)
        if operation in {"create", "replace"}:
            self._keep(
                inputs,
                self.provider.Create(
                    provider_pb2.CreateRequest(urn=self.urn, properties=wire.write(inputs), timeout=timeout_s),
                    Context(),
                ),
            )
        elif operation == "update":
            assert self.state
            request = provider_pb2.UpdateRequest(
                id=self.state.id,
                urn=self.urn,
                olds=wire.write(self.state.outputs),
                old_inputs=wire.write(self.state.inputs),
                news=wire.write(inputs),
                timeout=timeout_s,
            )
            self._keep(inputs, self.provider.Update(request, Context()))
        else:
            assert self.state
            self.state.inputs = inputs
        return operation

    def _keep(self, inputs: dict[str, Any], call: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = self.run(call)
        except Aborted as error:
            if error.partial is not None:
                identifier = error.partial.id
                assert identifier
                self.state = Entry(
                    identifier,
                    wire.read(error.partial.inputs),
                    wire.read(error.partial.properties),
                    list(error.partial.reasons),
                )
            raise
        identifier = (
            answer.id if isinstance(answer, provider_pb2.CreateResponse) else self.state.id if self.state else ""
        )
        assert identifier
        self.state = Entry(identifier, inputs, wire.read(answer.properties))

    def refresh(self) -> None:
        assert self.state
        request = provider_pb2.ReadRequest(
            id=self.state.id,
            urn=self.urn,
            properties=wire.write(self.state.outputs),
            inputs=wire.write(self.state.inputs),
        )
        answer = self.run(self.provider.Read(request, Context()))
        if not answer.id:
            self.state = None
        else:
            assert answer.id == self.state.id
            self.state = Entry(
                answer.id, wire.read(answer.inputs), wire.read(answer.properties), self.state.init_errors
            )

    def import_(self, name: str) -> Entry | None:
        answer = self.run(self.provider.Read(provider_pb2.ReadRequest(id=name, urn=self.urn), Context()))
        self.state = Entry(answer.id, wire.read(answer.inputs), wire.read(answer.properties)) if answer.id else None
        return self.state

    def destroy(self, *, timeout_s: float = 0) -> None:
        self.begin()
        self._delete(timeout_s=timeout_s)

    def replace_anyway(self, given: dict[str, Any], *, deletes_first: bool) -> None:
        """Replace as `pulumi up --replace` does: checked without the state, compared with nothing."""
        assert self.state
        self.begin()
        before, self.state = self.state, None
        inputs = self.inputs(given)
        self.state = before
        if deletes_first:
            self._delete()
        self._keep(
            inputs,
            self.provider.Create(provider_pb2.CreateRequest(urn=self.urn, properties=wire.write(inputs)), Context()),
        )
        if not deletes_first:
            self.delete_older(before)

    def delete_older(self, entry: Entry | None) -> None:
        """Delete an entry that a replacement left in the state beside the newer one, at the end of the same engine run."""
        newer, self.state = self.state, entry
        self._delete()
        self.state = newer

    def begin(self) -> None:
        """Begin an engine run: the real engine starts a provider for each, or configures an attached one."""
        self.run(self.provider.Configure(provider_pb2.ConfigureRequest(), Context()))

    def _delete(self, *, timeout_s: float = 0) -> None:
        if self.state is None:
            return
        request = provider_pb2.DeleteRequest(
            id=self.state.id,
            urn=self.urn,
            properties=wire.write(self.state.outputs),
            old_inputs=wire.write(self.state.inputs),
            timeout=timeout_s,
        )
        self.run(self.provider.Delete(request, Context()))
        self.state = None

    async def cancel(self) -> None:
        await self.provider.Cancel(empty_pb2.Empty(), Context())


def wanted(**changes: Any) -> dict[str, Any]:
    """A program's inputs: flex-start in two zones, with labels as every resource of a stack carries them."""
    base = {
        "project": "my-project",
        "zones": ["us-east5-a", "us-east5-b"],
        "queuedResourceId": "serve",
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "provisioningModel": "flex-start",
        "maxRunDurationS": 14400,
        "labels": {"managed-by": "gemma-serving", "gemma-serving-stack": "dev"},
        "metadata": {"startup-script": "#!/bin/sh\n"},
        "tags": ["serve"],
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}
