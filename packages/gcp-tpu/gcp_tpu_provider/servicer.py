"""gRPC service of the provider. Each engine call becomes an operation whose result is the response."""

# ruff: noqa: N802, ARG002 - the protocol sets the names and arguments of the methods

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf import empty_pb2, struct_pb2
from google.rpc import code_pb2, status_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from gcp_tpu_provider import TOKEN, VERSION, lifecycle, wire
from gcp_tpu_provider.capacity_api import capacity_api
from gcp_tpu_provider.check import check
from gcp_tpu_provider.compute_request import CLOUD_TPU, COMPUTE_ENGINE, is_instance
from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.diff import PropertyChange, diff, is_active, with_end
from gcp_tpu_provider.engine_log import EngineLog
from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.machine_warnings import deadline_warning, machine_report
from gcp_tpu_provider.operation import ResourceOperation
from gcp_tpu_provider.properties import package_schema
from gcp_tpu_provider.resource_record import preview_outputs
from gcp_tpu_provider.transport import Pacing, TpuTransport, unreachable_override

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")
Autonaming = provider_pb2.CheckRequest.AutonamingOptions

INTERRUPTED = "The operation was interrupted."
TIMED_OUT = "The operation exceeded the custom timeout of this resource."
KEPT = "The request is kept in the state. Run `pulumi up` to continue, or `pulumi destroy` to delete it."
OUTPUTS_KEPT = "Stack outputs that are listed with a minus are kept: a failed update removes none, and `pulumi stack output` shows them."
"""The engine prints a minus because a program with a failed resource registers no outputs. Its state keeps the previous ones."""

NOT_REPLACED = (
    "{name} is ACTIVE, and no change of its inputs replaces it. It was not deleted. Run `pulumi up` without `--replace` "
    "(after `pulumi state taint`: `pulumi state untaint`), or set `allowReplaceActive` to true to delete its capacity."
)
"""The engine compares no inputs for `--replace`, a tainted resource and another provider, so Diff cannot refuse."""


async def fail(context: Context, message: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> NoReturn:
    """End the call with an error message."""
    await context.abort(code, message)
    raise AssertionError("unreachable: abort raises")


async def fail_partially(
    context: Context, resource_id: str, outputs: wire.Properties, inputs: struct_pb2.Struct, message: str
) -> NoReturn:
    """Fail the call, but keep the id and the known outputs in the engine's state as unfinished."""
    if message in {INTERRUPTED, TIMED_OUT}:
        message = f"{message} {KEPT}"
    detail = provider_pb2.ErrorResourceInitFailed(
        id=resource_id, properties=wire.write(outputs), reasons=[message], inputs=inputs
    )
    status = status_pb2.Status(code=code_pb2.UNKNOWN, message=message)
    status.details.add().Pack(detail)
    await context.abort(
        grpc.StatusCode.UNKNOWN, message, trailing_metadata=(("grpc-status-details-bin", status.SerializeToString()),)
    )
    raise AssertionError("unreachable: abort raises")


@dataclass
class TpuProvider(provider_pb2_grpc.ResourceProviderServicer):
    """Service for `gcp-tpu:index:QueuedResource`. One instance can run many operations concurrently."""

    transport: TpuTransport
    pacing: Pacing = field(default_factory=Pacing)
    engine_log: EngineLog = field(default_factory=EngineLog)
    project: str = ""
    _unasked: dict[str, wire.Properties] = field(default_factory=dict[str, wire.Properties])
    """Inputs, by URN, that were checked without a state and before a comparison: a creation, or a replacement that no change causes."""
    _kept: dict[str, str] = field(default_factory=dict[str, str])
    """Creation times, by URN, of the queued resources that this engine run has compared or created; empty for one that a change replaces."""
    _running: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    # --- the provider ---

    async def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: Context
    ) -> provider_pb2.ProviderHandshakeResponse:
        """Connect to the engine's log. The engine masks secrets."""
        self.engine_log.connect(request.engine_address)
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=True, accept_resources=True, supports_autonaming_configuration=True
        )

    async def Attach(self, request: plugin_pb2.PluginAttach, context: Context) -> empty_pb2.Empty:
        """Connect to the log of an engine that attaches to a running provider."""
        self.engine_log.connect(request.address)
        return empty_pb2.Empty()

    async def GetPluginInfo(self, request: empty_pb2.Empty, context: Context) -> plugin_pb2.PluginInfo:
        """Return the version."""
        return plugin_pb2.PluginInfo(version=VERSION)

    async def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: Context
    ) -> provider_pb2.GetSchemaResponse:
        """Return the package schema."""
        return provider_pb2.GetSchemaResponse(schema=package_schema())

    async def GetMapping(
        self, request: provider_pb2.GetMappingRequest, context: Context
    ) -> provider_pb2.GetMappingResponse:
        """Return no mapping, because no other provider's resources convert to these."""
        return provider_pb2.GetMappingResponse()

    async def CheckConfig(self, request: provider_pb2.CheckRequest, context: Context) -> provider_pb2.CheckResponse:
        """Reject settings other than `project`."""
        given = wire.read(request.news)
        failures = [
            provider_pb2.CheckFailure(
                property=name, reason=f"`{name}` is not a setting of gcp-tpu. Known settings: project, version."
            )
            for name in given
            if name not in {"project", "version", "pluginDownloadURL"} and not name.startswith("__")
        ]
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    async def DiffConfig(self, request: provider_pb2.DiffRequest, context: Context) -> provider_pb2.DiffResponse:
        """Return no change. Each resource names its project, so no provider setting replaces a resource."""
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    async def Configure(
        self, request: provider_pb2.ConfigureRequest, context: Context
    ) -> provider_pb2.ConfigureResponse:
        """Store the default project. An engine run begins: an attached provider forgets the one before."""
        self._unasked.clear()
        self._kept.clear()
        project = wire.reveal(wire.read(request.args).get("project")) or ""
        self.project = "" if project == wire.UNKNOWN else str(project)
        return provider_pb2.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, acceptResources=True, supports_autonaming_configuration=True
        )

    async def Cancel(self, request: empty_pb2.Empty, context: Context) -> empty_pb2.Empty:
        """Cancel running operations. Each still reports its resource."""
        self.cancel_all()
        return empty_pb2.Empty()

    def cancel_all(self) -> None:
        """Cancel every running operation."""
        for task in tuple(self._running):
            task.cancel()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()
        await self.engine_log.close()

    # --- the resource ---

    async def Check(self, request: provider_pb2.CheckRequest, context: Context) -> provider_pb2.CheckResponse:
        """Fill in defaults. Each error becomes one failure."""
        await self._require_known(request.urn, context)
        olds, news = wire.read(request.olds), wire.read(request.news)
        if "queuedResourceId" in olds:  # the id stays once it is set
            news.setdefault("queuedResourceId", olds["queuedResourceId"])
        proposed = request.autonaming.proposed_name if request.HasField("autonaming") else ""
        checked = check(request.urn, news, project=self.project, proposed_name=proposed)
        # The engine prints the entire value of a property that is named alone. Metadata values are never shown.
        failures = [
            provider_pb2.CheckFailure(property="" if item.path == "metadata" else item.path, reason=item.sentence)
            for item in checked.mistakes
        ]
        if (
            request.HasField("autonaming")
            and request.autonaming.mode == Autonaming.DISABLE
            and "queuedResourceId" not in news
        ):
            reason = "`queuedResourceId` is missing, and the Pulumi settings disable automatic naming. Set it."
            failures.append(provider_pb2.CheckFailure(property="queuedResourceId", reason=reason))
        if not failures and (unreachable := await unreachable_override(_path_of(checked.inputs))) is not None:
            # Fail in the preview, before the dependencies of the resource are created.
            failures.append(provider_pb2.CheckFailure(property="", reason=unreachable))
        if not olds and request.urn not in self._kept:
            self._unasked[request.urn] = checked.inputs
        return provider_pb2.CheckResponse(inputs=wire.write(checked.inputs), failures=failures)

    async def Diff(self, request: provider_pb2.DiffRequest, context: Context) -> provider_pb2.DiffResponse:
        """Return for each changed property whether it changes in place or replaces. Read Google if the state records a running machine."""
        outputs, news = wire.read(request.olds), wire.read(request.news)
        try:
            changes = diff(request.urn, outputs, wire.read(request.old_inputs), news)
        except TpuProviderError as error:
            await fail(context, str(error))
        # The existing resource belongs to the API in its name; the inputs may name the other one.
        node = str(wire.reveal(outputs.get("nodeName")) or "")
        api = capacity_api(COMPUTE_ENGINE if is_instance(node) else CLOUD_TPU, self.transport)
        replaces = any(change.replaces for change in changes)
        self._keep(request.urn, {} if replaces else outputs)
        report = await machine_report(api, outputs, news, replaces=replaces)
        # Google's time, because the report has just called it.
        warning = deadline_warning(outputs, self.transport.now())
        for sentence in filter(None, (warning, *report.warnings)):
            await self.engine_log.warn(request.urn, sentence)
        return _diff_response(with_end(changes) if report.has_ended else changes)

    async def Create(self, request: provider_pb2.CreateRequest, context: Context) -> provider_pb2.CreateResponse:
        """Request the capacity and wait. A preview has no effect."""
        inputs = wire.read(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=wire.write(preview_outputs(inputs)))
        operation = self._operation(request.urn, inputs)
        message = await self._run(lifecycle.create(operation), request.timeout)
        if message and operation.record is None:
            await fail(context, message)
        outputs = operation.outputs(inputs)
        if message:
            await fail_partially(context, operation.desired.resource_id, outputs, request.properties, message)
        self._keep(request.urn, outputs)
        return provider_pb2.CreateResponse(id=operation.desired.resource_id, properties=wire.write(outputs))

    async def Update(self, request: provider_pb2.UpdateRequest, context: Context) -> provider_pb2.UpdateResponse:
        """Patch the node in place. Finish an interrupted creation."""
        inputs, state = wire.read(request.news), wire.read(request.olds)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=wire.write(preview_outputs(inputs, state)))
        operation = self._operation(request.urn, inputs, state)
        update = lifecycle.update(operation, state, wire.read(request.old_inputs))
        message = await self._run(update, request.timeout)
        if message and (operation.record is None or not operation.committed):
            if operation.record is not None and _moved(operation, state):
                before = operation.outputs(wire.read(request.old_inputs))
                await fail_partially(context, request.id, before, request.old_inputs, message)
            await fail(context, message)
        outputs = operation.outputs(inputs)
        if message:
            kept = message if message in {INTERRUPTED, TIMED_OUT} else f"{message} {OUTPUTS_KEPT}"
            await fail_partially(context, request.id, outputs, request.news, kept)
        return provider_pb2.UpdateResponse(properties=wire.write(outputs))

    async def Read(self, request: provider_pb2.ReadRequest, context: Context) -> provider_pb2.ReadResponse:
        """Return the resource, or an empty id if it is gone."""
        state, inputs = wire.read(request.properties), wire.read(request.inputs)
        found: list[lifecycle.ReadResult | None] = []

        async def read() -> None:
            name = request.id if state else await lifecycle.full_name(self.transport, request.id)
            operation = self._operation(request.urn, state, state, imported=name)
            found.append(await lifecycle.read(operation, name, state, inputs))

        message = await self._run(read(), request.timeout)
        if message:
            await fail(context, message)
        result = found[0]
        if result is None:
            return provider_pb2.ReadResponse()
        return provider_pb2.ReadResponse(
            id=result.resource_id, properties=wire.write(result.outputs), inputs=wire.write(result.inputs)
        )

    async def Delete(self, request: provider_pb2.DeleteRequest, context: Context) -> empty_pb2.Empty:
        """Delete the resource and wait until it is gone. An older entry of one that this run keeps is not deleted in Google Cloud."""
        state = wire.read(request.properties)
        created = wire.reveal(state.get("createTime"))
        if created and self._kept.get(request.urn) == created:
            return empty_pb2.Empty()
        asked = wire.reveal(self._unasked.get(request.urn, {"allowReplaceActive": True}).get("allowReplaceActive"))
        if is_active(state) and not asked:
            await fail(context, NOT_REPLACED.format(name=state.get("name")))
        message = await self._run(
            lifecycle.delete(self._operation(request.urn, state, state), request.id, state), request.timeout
        )
        if message:
            await fail(context, message)
        return empty_pb2.Empty()

    # --- running operations ---

    def _keep(self, urn: str, outputs: wire.Properties) -> None:
        self._kept[urn] = str(wire.reveal(outputs.get("createTime")) or "")

    def _operation(
        self, urn: str, inputs: wire.Properties, state: wire.Properties | None = None, *, imported: str = ""
    ) -> ResourceOperation:
        """Return an operation with the backend in the inputs, or in the full name of an import."""
        desired = DesiredState.of(urn, inputs)
        owners = cast("dict[str, str]", wire.reveal((state or {}).get("ownerLabels")) or {})
        tried = cast("list[str]", wire.reveal((state or {}).get("triedZones")) or [])
        return ResourceOperation(
            api=capacity_api(COMPUTE_ENGINE if is_instance(imported) else desired.api, self.transport),
            pacing=self.pacing,
            desired=desired,
            report_progress=lambda message: self.engine_log.show(urn, message),
            owners=frozenset(owners.values()),
            tried=dict.fromkeys(tried),
            now=self.transport.now,
        )

    async def _run(self, operation: Coroutine[Any, Any, None], timeout_s: float) -> str:
        """Run an operation as a task that Cancel can cancel. Return an empty string, or the error message."""
        task = asyncio.create_task(operation)
        self._running.add(task)
        try:
            async with asyncio.timeout(timeout_s or None):
                await asyncio.wait([task])
        except TimeoutError:
            task.cancel()
            await asyncio.wait([task])
            return TIMED_OUT
        finally:
            task.cancel()  # the call itself was cancelled, so nothing waits for the operation
            self._running.discard(task)
        if task.cancelled():
            return INTERRUPTED
        error = task.exception()
        if error is None or isinstance(error, TpuProviderError):
            return str(error) if error else ""
        return f"The provider has a bug. Report it: {type(error).__name__}: {error}"

    @staticmethod
    async def _require_known(urn: str, context: Context) -> None:
        token = urn.split("::")[2].rpartition("$")[2] if urn.count("::") >= 3 else TOKEN  # noqa: PLR2004 - urn:pulumi:STACK::PROJECT::TYPE::NAME
        if token != TOKEN:
            await fail(
                context,
                f"{token} is not a resource of gcp-tpu. Its only resource is {TOKEN}.",
                grpc.StatusCode.INVALID_ARGUMENT,
            )


def _path_of(inputs: wire.Properties) -> str:
    """Return the first path segment of the API in the inputs."""
    return "compute/" if wire.reveal(inputs.get("api")) == COMPUTE_ENGINE else ""


def _moved(operation: ResourceOperation, state: wire.Properties) -> bool:
    """Return whether the cloud has another name than the state."""
    return operation.owned_record().name != wire.reveal(state.get("name"))


def _diff_response(changes: list[PropertyChange]) -> provider_pb2.DiffResponse:
    names = [change.path.partition(".")[0].partition("[")[0] for change in changes]
    detailed: dict[str, provider_pb2.PropertyDiff] = {}
    for change in changes:
        kind = provider_pb2.PropertyDiff.Kind.Value(f"{change.kind.upper()}{'_REPLACE' if change.replaces else ''}")
        detailed[change.path] = provider_pb2.PropertyDiff(kind=kind, inputDiff=change.input_diff)
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(set(names)),
        replaces=sorted({name for name, change in zip(names, changes, strict=True) if change.replaces}),
        deleteBeforeReplace=True,  # the id is taken until the old resource is deleted, and capacity is limited to one
        detailedDiff=detailed,
        hasDetailedDiff=True,
    )
