"""The gRPC face of the provider: the engine's calls turned into operations, their ends into answers."""

# ruff: noqa: N802, ARG002 - names and arguments of the methods are the protocol's

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf import empty_pb2, struct_pb2
from google.rpc import code_pb2, status_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from gcp_tpu_provider import TOKEN, VERSION, lifecycle, wire
from gcp_tpu_provider.check import check
from gcp_tpu_provider.diff import Change, diff
from gcp_tpu_provider.engine import Engine
from gcp_tpu_provider.errors import ProviderError
from gcp_tpu_provider.flow import Flow
from gcp_tpu_provider.record import preview_outputs
from gcp_tpu_provider.request import Wish
from gcp_tpu_provider.schema import package_schema
from gcp_tpu_provider.tpu_api import TpuApi
from gcp_tpu_provider.transport import Timing, Transport, silent_override

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")
Autonaming = provider_pb2.CheckRequest.AutonamingOptions

INTERRUPTED = "The operation was interrupted."
TIMED_OUT = "The time that this resource's custom timeout allows is over."
KEPT = "What was asked for is kept in the state: `pulumi up` goes on with it, `pulumi destroy` gives it up."
KINDS = {
    ("add", False): provider_pb2.PropertyDiff.ADD,
    ("add", True): provider_pb2.PropertyDiff.ADD_REPLACE,
    ("delete", False): provider_pb2.PropertyDiff.DELETE,
    ("delete", True): provider_pb2.PropertyDiff.DELETE_REPLACE,
    ("update", False): provider_pb2.PropertyDiff.UPDATE,
    ("update", True): provider_pb2.PropertyDiff.UPDATE_REPLACE,
}


async def fail(context: Context, message: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> NoReturn:
    """End the call with one message."""
    await context.abort(code, message)
    raise AssertionError("unreachable: abort raises")


async def fail_partially(
    context: Context, resource_id: str, outputs: wire.Properties, inputs: struct_pb2.Struct, message: str
) -> NoReturn:
    """End the call so that the engine keeps the id and what is known in the state, marked as not finished."""
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
    """Serves `gcp-tpu:index:QueuedResource`. One instance serves any number of operations at a time."""

    transport: Transport
    timing: Timing = field(default_factory=Timing)
    engine: Engine = field(default_factory=Engine)
    project: str = ""
    _running: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    # --- the provider itself ---

    async def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: Context
    ) -> provider_pb2.ProviderHandshakeResponse:
        """Learn the engine's address; secrets come marked."""
        self.engine.connect(request.engine_address)
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=True, accept_resources=True, supports_autonaming_configuration=True
        )

    async def Attach(self, request: plugin_pb2.PluginAttach, context: Context) -> empty_pb2.Empty:
        """Learn the engine's address when the provider was running before the engine."""
        self.engine.connect(request.address)
        return empty_pb2.Empty()

    async def GetPluginInfo(self, request: empty_pb2.Empty, context: Context) -> plugin_pb2.PluginInfo:
        """Tell the version."""
        return plugin_pb2.PluginInfo(version=VERSION)

    async def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: Context
    ) -> provider_pb2.GetSchemaResponse:
        """Return the package schema."""
        return provider_pb2.GetSchemaResponse(schema=package_schema())

    async def GetMapping(
        self, request: provider_pb2.GetMappingRequest, context: Context
    ) -> provider_pb2.GetMappingResponse:
        """Nothing is mapped from elsewhere."""
        return provider_pb2.GetMappingResponse()

    async def CheckConfig(self, request: provider_pb2.CheckRequest, context: Context) -> provider_pb2.CheckResponse:
        """Only `project` can be configured."""
        given = wire.read(request.news)
        failures = [
            provider_pb2.CheckFailure(
                property=name, reason=f"`{name}` is not a setting of gcp-tpu; known are project and version."
            )
            for name in given
            if name not in {"project", "version", "pluginDownloadURL"} and not name.startswith("__")
        ]
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    async def DiffConfig(self, request: provider_pb2.DiffRequest, context: Context) -> provider_pb2.DiffResponse:
        """No setting of the provider replaces a resource: each resource names its project."""
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    async def Configure(
        self, request: provider_pb2.ConfigureRequest, context: Context
    ) -> provider_pb2.ConfigureResponse:
        """Take over the default project."""
        project = wire.reveal(wire.read(request.args).get("project")) or ""
        self.project = "" if project == wire.UNKNOWN else str(project)
        return provider_pb2.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, acceptResources=True, supports_autonaming_configuration=True
        )

    async def Cancel(self, request: empty_pb2.Empty, context: Context) -> empty_pb2.Empty:
        """Break off what is running; each operation still tells what it leaves behind."""
        self.cancel_all()
        return empty_pb2.Empty()

    def cancel_all(self) -> None:
        """Break off every running operation."""
        for task in tuple(self._running):
            task.cancel()

    async def close(self) -> None:
        """Release connections."""
        await self.transport.close()
        await self.engine.close()

    # --- the resource ---

    async def Check(self, request: provider_pb2.CheckRequest, context: Context) -> provider_pb2.CheckResponse:
        """Fill in defaults; every mistake is one failure."""
        await self._require_known(request.urn, context)
        olds, news = wire.read(request.olds), wire.read(request.news)
        if "queuedResourceId" in olds:  # a name once given is kept
            news.setdefault("queuedResourceId", olds["queuedResourceId"])
        proposed = request.autonaming.proposed_name if request.HasField("autonaming") else ""
        checked = check(request.urn, news, project=self.project, proposed_name=proposed)
        # The engine prints the whole value of a property that is named alone; that of metadata is never shown.
        failures = [
            provider_pb2.CheckFailure(property="" if item.path == "metadata" else item.path, reason=item.sentence)
            for item in checked.mistakes
        ]
        if (
            request.HasField("autonaming")
            and request.autonaming.mode == Autonaming.DISABLE
            and "queuedResourceId" not in news
        ):
            reason = "`queuedResourceId` is missing, and automatic naming is switched off in the Pulumi settings."
            failures.append(provider_pb2.CheckFailure(property="queuedResourceId", reason=reason))
        if not failures and (silent := await silent_override()) is not None:
            # Said now, in the preview, and not when everything that the resource depends on has been made.
            failures.append(provider_pb2.CheckFailure(property="", reason=silent))
        return provider_pb2.CheckResponse(inputs=wire.write(checked.inputs), failures=failures)

    async def Diff(self, request: provider_pb2.DiffRequest, context: Context) -> provider_pb2.DiffResponse:
        """Say for each property whether it changes in place or replaces."""
        try:
            changes = diff(request.urn, wire.read(request.olds), wire.read(request.old_inputs), wire.read(request.news))
        except ProviderError as error:
            await fail(context, str(error))
        return _diff_response(changes)

    async def Create(self, request: provider_pb2.CreateRequest, context: Context) -> provider_pb2.CreateResponse:
        """Get the capacity and wait; in a preview, nothing happens."""
        inputs = wire.read(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=wire.write(preview_outputs(inputs)))
        wish, flow = Wish.of(request.urn, inputs), self._flow(request.urn)
        message = await self._run(lifecycle.create(flow, wish), request.timeout)
        if message and flow.record is None:
            await fail(context, message)
        outputs = flow.owned_record().outputs(inputs)
        if message:
            await fail_partially(context, wish.resource_id, outputs, request.properties, message)
        return provider_pb2.CreateResponse(id=wish.resource_id, properties=wire.write(outputs))

    async def Update(self, request: provider_pb2.UpdateRequest, context: Context) -> provider_pb2.UpdateResponse:
        """Patch the node in place; finish a creation that was cut off."""
        inputs, state = wire.read(request.news), wire.read(request.olds)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=wire.write(preview_outputs(inputs, state)))
        flow = self._flow(request.urn, state)
        operation = lifecycle.update(flow, Wish.of(request.urn, inputs), state, wire.read(request.old_inputs))
        message = await self._run(operation, request.timeout)
        if message and (flow.record is None or not flow.committed):
            await fail(context, message)
        outputs = flow.owned_record().outputs(inputs)
        if message:
            await fail_partially(context, request.id, outputs, request.news, message)
        return provider_pb2.UpdateResponse(properties=wire.write(outputs))

    async def Read(self, request: provider_pb2.ReadRequest, context: Context) -> provider_pb2.ReadResponse:
        """Return what is there; an empty id when it is gone."""
        state, inputs = wire.read(request.properties), wire.read(request.inputs)
        found: list[lifecycle.Found | None] = []

        async def read() -> None:
            found.append(await lifecycle.read(self._flow(request.urn, state), request.id, state, inputs))

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
        """Delete and see it gone."""
        state = wire.read(request.properties)
        message = await self._run(lifecycle.delete(self._flow(request.urn, state), request.id, state), request.timeout)
        if message:
            await fail(context, message)
        return empty_pb2.Empty()

    # --- how operations run ---

    def _flow(self, urn: str, state: wire.Properties | None = None) -> Flow:
        owners = cast("dict[str, str]", wire.reveal((state or {}).get("ownerLabels")) or {})
        return Flow(
            api=TpuApi(self.transport),
            timing=self.timing,
            urn=urn,
            say=lambda message: self.engine.say(urn, message),
            owners=frozenset(owners.values()),
        )

    async def _run(self, operation: Coroutine[Any, Any, None], timeout_s: float) -> str:
        """Run an operation as a task that Cancel can break off. Return an empty text, or why it did not end well."""
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
            task.cancel()  # the call itself was broken off: nobody is left to wait for the operation
            self._running.discard(task)
        if task.cancelled():
            return INTERRUPTED
        error = task.exception()
        if error is None or isinstance(error, ProviderError):
            return str(error) if error else ""
        return f"The provider made a mistake, please report it: {type(error).__name__}: {error}"

    @staticmethod
    async def _require_known(urn: str, context: Context) -> None:
        token = urn.split("::")[2].rpartition("$")[2] if urn.count("::") >= 3 else TOKEN  # noqa: PLR2004 - urn:pulumi:STACK::PROJECT::TYPE::NAME
        if token != TOKEN:
            await fail(
                context, f"{token} is not a resource of gcp-tpu; it has {TOKEN}.", grpc.StatusCode.INVALID_ARGUMENT
            )


def _diff_response(changes: list[Change]) -> provider_pb2.DiffResponse:
    names = [change.path.partition(".")[0].partition("[")[0] for change in changes]
    detailed = {
        change.path: provider_pb2.PropertyDiff(kind=KINDS[change.kind, change.replaces], inputDiff=change.input_diff)
        for change in changes
    }
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(set(names)),
        replaces=sorted({name for name, change in zip(names, changes, strict=True) if change.replaces}),
        deleteBeforeReplace=True,  # the id stays taken until the old one is deleted, and capacity is not there twice
        detailedDiff=detailed,
        hasDetailedDiff=True,
    )
