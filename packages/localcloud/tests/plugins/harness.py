"""Drives the stand-ins over gRPC as the engine does, against a transport that the test chooses."""

import asyncio
import copy
import functools
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc.aio
from google.protobuf import json_format, struct_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from localcloud.plugins import serve
from localcloud.plugins.rest import TransportReply

ORACLE = Path(__file__).parents[1] / "fixtures" / "oracle"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"
T = TypeVar("T")
KINDS = {value: name.lower().replace("_", "-") for name, value in provider_pb2.PropertyDiff.Kind.items()}


def oracle(name: str) -> Any:
    """One of the recordings: a list of lines, or one JSON document."""
    text = (ORACLE / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else json.loads(text)


def secret(value: Any) -> dict[str, Any]:
    return {SIGNATURE: SECRET_SIGNATURE, "value": value}


def is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET_SIGNATURE


def to_struct(value: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    json_format.ParseDict(dict(value), struct)
    return struct


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    return json_format.MessageToDict(struct)


@dataclass
class Sent:
    """One request that a stand-in made."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path


class Recorder:
    """A transport that records every request and responds with the result of `answer`: a JSON object, or a status and one."""

    def __init__(self, answer: Callable[[Sent], Any]) -> None:
        self.sent: list[Sent] = []
        self._answer = answer

    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> TransportReply:
        is_json = body is not None and headers.get("Content-Type") == "application/json"
        parsed = json.loads(body or b"") if is_json else None
        request = Sent(method, f"/{path}", dict(query), parsed, body, dict(headers))
        self.sent.append(request)
        answer = self._answer(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        status, payload = answer if isinstance(answer, tuple) else (200, answer)
        return TransportReply(status=status, text=json.dumps(payload))

    async def close(self) -> None:
        return

    def take(self) -> list[Sent]:
        taken, self.sent = self.sent, []
        return taken

    @property
    def changes(self) -> list[Sent]:
        """Requests that change something."""
        return [each for each in self.sent if each.method != "GET" and not each.path.endswith(":getIamPolicy")]


class Replay:
    """Answers as the recordings do: exchanges of the same method and path in their order, the last of them again and again."""

    def __init__(self, *names: str) -> None:
        self._left: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for name in names:
            for exchange in oracle(name):
                request = exchange["request"]
                self._left.setdefault((request["method"], request["path"]), []).append(exchange)

    def __call__(self, request: Sent) -> tuple[int, Any]:
        exchanges = self._left.get(request.key)
        if not exchanges:
            message = f"{request.method} {request.path} is not in the recordings"
            return 400, {"error": {"code": 400, "message": message}}
        exchange = exchanges.pop(0) if len(exchanges) > 1 else exchanges[0]
        return exchange["status"], exchange["response"]


class BareStore:
    """Stores POSTed documents and returns them, as the service behind the recordings did, enough for one resource at a time."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Sent) -> Any:
        path = unquote(request.path)
        if request.method == "GET":
            return copy.deepcopy(self.items[path]) if path in self.items else self.missing(path)
        if request.method == "DELETE":
            return {} if self.items.pop(path, None) is not None else self.missing(path)
        if request.method in {"PATCH", "PUT"}:
            self.items.setdefault(path, {}).update(request.body or {})
            return copy.deepcopy(self.items[path])
        name = next(
            (value for key, value in request.query.items() if key.lower().endswith("id")),
            (request.body or {}).get("name", "1"),
        )
        self.items[f"{path}/{name}"] = {"name": name, **(request.body or {})}
        return copy.deepcopy(self.items[f"{path}/{name}"])

    @staticmethod
    def missing(path: str) -> tuple[int, Any]:
        return 404, {"error": {"code": 404, "message": f"{path} was not found", "status": "NOT_FOUND"}}


@dataclass
class Resource:
    """A resource as the engine keeps it."""

    type: str
    name: str
    id: str
    inputs: dict[str, Any]
    state: dict[str, Any]


def operation_of(answer: Any) -> str:
    """Return the engine's action after a diff."""
    if answer.replaces:
        return "replace"
    return "update" if answer.changes == provider_pb2.DiffResponse.DIFF_SOME else "same"


class InitFailedError(Exception):
    """The provider reported a resource that exists but is not ready."""

    def __init__(self, detail: Any) -> None:
        super().__init__("; ".join(detail.reasons))
        self.id = detail.id
        self.state = from_struct(detail.properties)
        self.reasons = list(detail.reasons)


class CheckFailedError(Exception):
    """Check found something wrong."""

    def __init__(self, failures: list[tuple[str, str]]) -> None:
        super().__init__(str(failures))
        self.failures = failures


def _olds(resource: Resource) -> dict[str, Any]:
    return {"olds": to_struct(resource.state), "old_inputs": to_struct(resource.inputs)}


class Engine:
    """The engine's side of one connection."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub

    async def configure(self, **args: Any) -> Any:
        await self.stub.Attach(provider_pb2_attach())
        return await self.stub.Configure(provider_pb2.ConfigureRequest(args=to_struct(args), acceptSecrets=True))

    @staticmethod
    def urn(type_name: str, name: str) -> str:
        return f"urn:pulumi:dev::project::{type_name}::{name}"

    def _known(self, resource: Resource) -> dict[str, str]:
        """Return the fields of every request about a resource."""
        urn = self.urn(resource.type, resource.name)
        return {"id": resource.id, "urn": urn, "name": resource.name, "type": resource.type}

    async def check(
        self, type_name: str, name: str, news: dict[str, Any], olds: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        request = provider_pb2.CheckRequest(
            urn=self.urn(type_name, name), name=name, type=type_name, news=to_struct(news), olds=to_struct(olds or {})
        )
        for key, value in options.items():
            setattr(request, key, value)
        response = await self.stub.Check(request)
        if response.failures:
            raise CheckFailedError([(each.property, each.reason) for each in response.failures])
        return from_struct(response.inputs)

    async def diff(self, resource: Resource, news: dict[str, Any], ignore_changes: Sequence[str] = ()) -> Any:
        return await self.stub.Diff(
            provider_pb2.DiffRequest(
                **self._known(resource), **_olds(resource), news=to_struct(news), ignoreChanges=list(ignore_changes)
            )
        )

    async def create(
        self, type_name: str, name: str, inputs: dict[str, Any], *, preview: bool = False, limit_s: float = 0
    ) -> Resource:
        request = provider_pb2.CreateRequest(
            urn=self.urn(type_name, name),
            name=name,
            type=type_name,
            properties=to_struct(inputs),
            preview=preview,
            timeout=limit_s,
        )
        response = await _rich(self.stub.Create(request))
        return Resource(type_name, name, response.id, inputs, from_struct(response.properties))

    async def up(self, type_name: str, name: str, news: dict[str, Any]) -> Resource:
        """Check and create."""
        return await self.create(type_name, name, await self.check(type_name, name, news))

    async def update(self, resource: Resource, news: dict[str, Any], *, preview: bool = False) -> Resource:
        request = provider_pb2.UpdateRequest(
            **self._known(resource), **_olds(resource), news=to_struct(news), preview=preview
        )
        response = await _rich(self.stub.Update(request))
        return Resource(resource.type, resource.name, resource.id, news, from_struct(response.properties))

    async def read(self, resource: Resource) -> Resource | None:
        state, inputs = to_struct(resource.state), to_struct(resource.inputs)
        request = provider_pb2.ReadRequest(**self._known(resource), properties=state, inputs=inputs)
        response = await self.stub.Read(request)
        if not response.id:
            return None
        return Resource(
            resource.type, resource.name, response.id, from_struct(response.inputs), from_struct(response.properties)
        )

    async def delete(self, resource: Resource) -> None:
        state = to_struct(resource.state)
        await self.stub.Delete(provider_pb2.DeleteRequest(**self._known(resource), properties=state))


def provider_pb2_attach() -> Any:
    from pulumi.runtime.proto import plugin_pb2  # noqa: PLC0415 - used here only

    return plugin_pb2.PluginAttach(address="127.0.0.1:1")


async def _rich(call: Awaitable[Any]) -> Any:
    from google.rpc import status_pb2  # noqa: PLC0415 - used here only

    try:
        return await call
    except grpc.aio.AioRpcError as error:
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_pb2.Status()
                status.ParseFromString(value)
                detail = provider_pb2.ErrorResourceInitFailed()
                if status.details and status.details[0].Unpack(detail):
                    raise InitFailedError(detail) from error
        raise


@asynccontextmanager
async def engine(
    transport: Any,
    package: str = "gcp",
    *,
    environment: dict[str, str] | None = None,
    token: str = "the-tests-own",  # noqa: S107 - no cloud has issued it
    speed: float = 1.0,
    **args: Any,
) -> AsyncGenerator[Engine]:
    """Serve the stand-ins over a transport and connect to one of them."""
    async with (
        serve(
            "http://127.0.0.1:9", transport=transport, token=token, environment=environment or {}, speed=speed
        ) as ports,
        connected(getattr(ports, package)) as attached,
    ):
        await attached.configure(**args)
        yield attached


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Engine]:
    """One connection to a stand-in."""
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield Engine(provider_pb2_grpc.ResourceProviderStub(channel))


def on_engine(answer: Any, work: Callable[[Engine], Awaitable[T]], *, limit_s: float = 30, **args: Any) -> T:
    """Work with the `gcp` stand-in over a recorder, or over one with this function as its answer, and return the result."""

    async def scenario() -> T:
        transport = answer if isinstance(answer, Recorder) else Recorder(answer)
        async with engine(transport, **{"project": "p1", "region": "us-east4", **args}) as attached:
            return await work(attached)

    return run(scenario(), limit_s=limit_s)


def run(scenario: Awaitable[T], *, limit_s: float = 30) -> T:
    """Run a scenario to its end, within half a minute."""

    async def bounded() -> T:
        return await asyncio.wait_for(scenario, timeout=limit_s)

    return asyncio.run(bounded())


def camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def camel_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            camel(key) if re.fullmatch(r"[a-z_0-9]+", key) else key: camel_value(each) for key, each in value.items()
        }
    return [camel_value(each) for each in value] if isinstance(value, list) else value


def with_property(inputs: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Inputs with one property changed; None removes it."""
    changed = copy.deepcopy(inputs)
    *parents, last = [int(step) if step.isdigit() else camel(step) for step in path.split(".")]
    at: Any = changed
    for step in parents:
        at = at[step] if isinstance(step, int) else at.setdefault(step, {})
    if value is None:
        at.pop(last)
    else:
        # Keys of labels are the program's own words.
        is_map = isinstance(value, dict) and str(last).lower().endswith("labels")
        at[last] = value if is_map else camel_value(value)
    return changed


# Values that the recordings hide: inputs that the preview shows as secret.
SECRETS = {"version": {"secretData": "hf_canary"}}


def declared(*, args: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """The recorded resources; `args` in place of the service's arguments."""
    resources = copy.deepcopy(oracle("inputs.json"))
    if args:
        resources["svc"]["inputs"]["template"]["containers"][0]["args"] = args
    for name, values in SECRETS.items():
        for key, value in values.items():
            resources[name]["inputs"][key] = secret(value)
    return resources


async def create_all(attached: Engine, *, args: list[str] | None = None) -> dict[str, Resource]:
    return {name: await attached.up(each["type"], name, each["inputs"]) for name, each in declared(args=args).items()}


@functools.cache
def _all_created() -> tuple[Replay, dict[str, Resource]]:
    replay = Replay("create.jsonl")
    return replay, on_engine(replay, create_all)


def created() -> tuple[Replay, dict[str, Resource]]:
    """Every recorded resource, and the recorded cloud after its creation: created once, because many tests start there."""
    return copy.deepcopy(_all_created())


# Shown as added on every change because of the empty maps in the answers behind the recordings, not because of the change itself.
ODDITIES = {
    "gcp:cloudrunv2/service:Service": {"template.annotations", "template.labels"},
    "gcp:monitoring/alertPolicy:AlertPolicy": {"conditions[0].conditionPrometheusQueryLanguage.labels"},
}


def recorded_details(row: dict[str, Any], details: dict[str, str]) -> dict[str, str]:
    """Differences of a recorded row without the oddities."""
    changed = re.sub(r"\.(\d+)", r"[\1]", row["property"])
    odd = {path for path in ODDITIES.get(row["type"], set()) if path != changed}
    return {path: kind for path, kind in details.items() if path not in odd}


def row_id(index: int, row: dict[str, Any]) -> str:
    return f"{index}-{row['type'].rpartition(':')[2]}-{row['property']}"
