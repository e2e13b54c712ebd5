"""The gRPC side: Pulumi's provider protocol in front of a provider.

One server serves several provider instances of the same package (the default one and explicit ones), because that is how the engine uses
PULUMI_DEBUG_PROVIDERS. Each instance has its own connection, so a session belongs to a connection.
"""

import json
import traceback
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf import any_pb2, empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from localcloud.plugins.checking import Failure, Naming
from localcloud.plugins.diffing import Difference
from localcloud.plugins.docker import DockerProvider, DockerSession
from localcloud.plugins.gcp import GcpProvider, GcpSession
from localcloud.plugins.lifecycle import CreatedResource, PartlyDoneError
from localcloud.plugins.rest import PluginError
from localcloud.plugins.values import (
    Properties,
    Secrets,
    UnsupportedValueError,
    conceal,
    from_struct,
    plain,
    to_struct,
)

# Pulumi's and grpc's generated stubs name modules that do not exist at run time, so a type checker sees nothing in them. Only this module
# reads and creates the messages, and passes them on as typed values.
Request: TypeAlias = Any
RpcContext: TypeAlias = Any

Provider: TypeAlias = GcpProvider | DockerProvider
Session: TypeAlias = GcpSession | DockerSession
"""A configured provider. Every method raises PluginError with a user-facing message; none logs or keeps a secret."""

_NO_SECRETS: Final = Secrets()


class ProviderServicer(provider_pb2_grpc.ResourceProviderServicer):
    """Serves one package to the engine."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._sessions: dict[str, Session] = {}

    async def Attach(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Handle an engine that attaches to this running provider."""
        del request, context
        return empty_pb2.Empty()

    async def Handshake(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Return the supported features."""
        del request, context
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    async def GetPluginInfo(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Return the version of the replaced provider."""
        del request, context
        return plugin_pb2.PluginInfo(version=self._provider.version)

    async def GetSchema(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Return the schema of what the stand-in serves."""
        del request, context
        return provider_pb2.GetSchemaResponse(schema=json.dumps(self._provider.schema()))

    async def CheckConfig(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Check the provider's configuration."""
        async with _answering(context):
            news, _ = plain(from_struct(request.news))
            failures = self._provider.check_config(news)
            return provider_pb2.CheckResponse(inputs=request.news, failures=_failures(failures))

    async def DiffConfig(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Compare configurations. As in the real providers, no change replaces the provider."""
        async with _answering(context):
            changed = from_struct(request.olds) != from_struct(request.news)
            changes = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
            return provider_pb2.DiffResponse(changes=changes)

    async def Configure(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Start the connection's session."""
        async with _answering(context):
            configuration, _ = plain(from_struct(request.args))
            for key, value in request.variables.items():
                configuration.setdefault(key.rpartition(":")[2], value)
            self._sessions[context.peer()] = self._provider.configure(configuration)
            return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def _session(self, context: RpcContext) -> Session:
        """Return the connection's session, or the only session after a reconnection. Raises PluginError if several exist."""
        session = self._sessions.get(context.peer())
        if session is not None:
            return session
        candidates: list[Session] = []
        for each in self._sessions.values():
            if each not in candidates:
                candidates.append(each)
        if len(candidates) != 1:
            raise PluginError(
                f"the {self._provider.name} provider is not configured on this connection. Run the command again"
            )
        return candidates[0]

    async def Check(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Check a resource's inputs and set defaults."""
        async with _answering(context):
            news, secrets = plain(from_struct(request.news))
            olds, _ = plain(from_struct(request.olds))
            type_name, name = _type_and_name(request)
            naming = Naming(name=name, seed=bytes(request.randomSeed))
            checked = self._session(context).check(type_name, news, olds, naming)
            return provider_pb2.CheckResponse(
                inputs=to_struct(conceal(checked.inputs, secrets)), failures=_failures(checked.failures)
            )

    async def Diff(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Compare a resource's state with new inputs."""
        async with _answering(context):
            state, _ = plain(from_struct(request.olds))
            news, _ = plain(from_struct(request.news))
            kept = _ignoring(request.ignoreChanges, state, news)
            return _diff_response(self._session(context).diff(_type_and_name(request)[0], state, kept))

    async def Create(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Create a resource, or predict it in a preview."""
        inputs, secrets = plain(from_struct(request.properties))
        type_name = _type_and_name(request)[0]
        async with _answering(context, inputs=inputs, secrets=secrets):
            session = self._session(context)
            marks = secrets | Secrets(session.secret_paths(type_name))
            if request.preview:
                predicted = session.preview_create(type_name, inputs)
                return provider_pb2.CreateResponse(properties=to_struct(conceal(predicted, marks)))
            created = await session.create(type_name, inputs, limit_s=request.timeout)
            return provider_pb2.CreateResponse(id=created.id, properties=to_struct(conceal(created.state, marks)))

    async def Read(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Read a resource for a refresh, or without inputs for an import."""
        async with _answering(context):
            inputs, input_secrets = plain(from_struct(request.inputs))
            state, state_secrets = plain(from_struct(request.properties))
            session = self._session(context)
            type_name = _type_and_name(request)[0]
            found = await session.read(type_name, request.id, inputs, state)
            if found is None:
                return provider_pb2.ReadResponse()
            marks = input_secrets | state_secrets | Secrets(session.secret_paths(type_name))
            return provider_pb2.ReadResponse(
                id=found.created.id,
                properties=to_struct(conceal(found.created.state, marks)),
                inputs=to_struct(conceal(found.inputs, marks)),
            )

    async def Update(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Update a resource, or predict it in a preview."""
        news, secrets = plain(from_struct(request.news))
        type_name = _type_and_name(request)[0]
        async with _answering(context, inputs=news, secrets=secrets):
            state, _ = plain(from_struct(request.olds))
            session = self._session(context)
            marks = secrets | Secrets(session.secret_paths(type_name))
            if request.preview:
                predicted = session.preview_update(type_name, state, news)
                return provider_pb2.UpdateResponse(properties=to_struct(conceal(predicted, marks)))
            updated = await session.update(type_name, request.id, state, news, limit_s=request.timeout)
            return provider_pb2.UpdateResponse(properties=to_struct(conceal(updated.state, marks)))

    async def Delete(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Delete a resource."""
        async with _answering(context):
            state, _ = plain(from_struct(request.properties))
            await self._session(context).delete(_type_and_name(request)[0], request.id, state, limit_s=request.timeout)
            return empty_pb2.Empty()

    async def Invoke(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Call a data source."""
        async with _answering(context):
            arguments, _ = plain(from_struct(request.args))
            answer = await self._session(context).invoke(request.tok, arguments)
            # `return` is a Python keyword, so it cannot be written as one.
            options: dict[str, Any] = {"return": to_struct(answer)}
            return provider_pb2.InvokeResponse(**options)

    async def Cancel(self, request: Request, context: RpcContext) -> Request:  # noqa: N802 - the protocol's name
        """Do nothing, as in the real providers: operations in progress run to completion, and the engine records them.

        Source: pulumi/pulumi-terraform-bridge, pkg/tfshim/sdk-v2/provider.go (`Stop` returns nil; Apply runs in a context that nothing cancels), 2026-11.
        """
        del request, context
        return empty_pb2.Empty()


def _type_and_name(request: Request) -> tuple[str, str]:
    """Return the type and name of the resource from their own fields, or from the URN for engines that do not send them."""
    qualified, _, name = str(request.urn).partition("::")[2].partition("::")[2].partition("::")
    return str(request.type) or qualified.rpartition("$")[2], str(request.name) or name


def _failures(failures: tuple[Failure, ...]) -> Request:
    return [provider_pb2.CheckFailure(property=failure.path, reason=failure.reason) for failure in failures]


def _ignoring(paths: Iterable[str], state: Properties, news: Properties) -> Properties:
    """Return new inputs with the state's values of ignored properties. An engine passes them on in a refresh and expects no difference."""
    kept = {name: state[name] for name in paths if name in state}
    return {**{name: value for name, value in news.items() if name not in set(paths)}, **kept}


def _diff_response(difference: Difference) -> Request:
    rendered = difference.rendered()
    response: Request = provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if rendered else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(difference.changed),
        replaces=sorted(path for path, kind in rendered.items() if kind.endswith("-replace")),
        deleteBeforeReplace=difference.delete_first,
        hasDetailedDiff=True,
    )
    for path, kind in rendered.items():
        response.detailedDiff[path].kind = provider_pb2.PropertyDiff.Kind.Value(kind.upper().replace("-", "_"))
    return response


@asynccontextmanager
async def _answering(
    context: RpcContext, *, inputs: Properties | None = None, secrets: Secrets = _NO_SECRETS
) -> AsyncGenerator[None]:
    """Convert errors to the protocol's: one user-facing message, and the existing resource if one exists."""
    try:
        yield
    except PartlyDoneError as error:
        await _abort_partly(context, error.created, str(error), inputs or {}, secrets)
    except (PluginError, UnsupportedValueError) as error:
        await context.abort(grpc.StatusCode.UNKNOWN, str(error))
    except (grpc.aio.AbortError, grpc.aio.BaseError):
        raise
    except Exception as error:  # noqa: BLE001 - its text can contain a secret, which the server must not log
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"an error in the local stand-in: {type(error).__name__} at {where.filename.rpartition('localcloud')[2]}:{where.lineno}"
        await context.abort(grpc.StatusCode.INTERNAL, message)


async def _abort_partly(
    context: RpcContext, created: CreatedResource, reason: str, inputs: Properties, secrets: Secrets
) -> NoReturn:
    """Report a resource that exists but is not ready. The engine keeps it, and the next update calls Update even without a difference."""
    detail = provider_pb2.ErrorResourceInitFailed(
        id=created.id,
        properties=to_struct(conceal(created.state, secrets)),
        inputs=to_struct(conceal(inputs, secrets)),
        reasons=[reason],
    )
    packed = any_pb2.Any()
    packed.Pack(detail)
    status: Request = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=reason, details=[packed])
    trailing = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc.StatusCode.UNKNOWN, reason, trailing)
    raise AssertionError("abort raises")
