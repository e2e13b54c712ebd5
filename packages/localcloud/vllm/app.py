"""vLLM's HTTP endpoints on the simulated engine."""

import asyncio
import hmac
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, cast

from aiohttp import web

from localcloud.callers import foreign_host, other_user, web_page_header
from localcloud.json_values import as_list, as_object, filled
from localcloud.vllm import VERSION, agent_apis, tokens
from localcloud.vllm.adapters import adapters_of
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.engine import EngineGroup, Sequence
from localcloud.vllm.faults import (
    FaultError,
    InjectedFaults,
    RequestFaults,
    broken_body,
    broken_request,
)
from localcloud.vllm.generation import Abilities, Completion, answer
from localcloud.vllm.media import ENGINE_DEAD, NO_EMBEDDINGS, MediaRules, check_items, read_media
from localcloud.vllm.memory import KvCacheSize
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.middleware import Middleware, cors_headers, is_preflight, preflight
from localcloud.vllm.protocol import (
    Malformed,
    Request,
    RequestError,
    check_length,
    malformed,
    parse,
    read_chat,
    refuse_more_choices,
)
from localcloud.vllm.recorded import Model
from localcloud.vllm.stream import FORMS, StreamReply, WholeReply, as_events

_GUARDED: Final = ("/v1", "/v2", "/inference")
_SIMULATOR: Final = "/_sim/"
"""Prefix of the simulator's own paths, which no vLLM option affects."""
_ORIGINS: Final = "allowed-origins"
_MAX_BODY_BYTES: Final = 64 * 2**20
_CRASH_STATUS: Final = 139
_DISCONNECTED_STATUS: Final = 200
_FAILED_STATUS: Final = 500

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the application."""

    arguments: Arguments
    capacity: KvCacheSize
    engines: EngineGroup
    metrics: Metrics
    faults: InjectedFaults
    api_keys: tuple[str, ...]
    created: int
    middleware: Middleware
    media: MediaRules
    model: Model
    is_jax: bool
    """True if a JAX model serves. Any item but an image ends its engine."""
    most_choices: int
    """Value of VLLM_MAX_N_SEQUENCES: answers to one request at most."""
    is_developer: bool
    """True if VLLM_SERVER_DEV_MODE enables the developer endpoints."""
    loads_adapters: bool
    """True if VLLM_ALLOW_RUNTIME_LORA_UPDATING allows callers to load adapters."""


def make_app(parts: Parts) -> web.Application:
    """Return the application. Every response has the header `x-simulated: vllm`."""
    server = _VllmApi(parts)
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[server.middleware])
    app.add_routes(
        [
            web.get("/health", server.health, allow_head=False),
            web.get("/ping", server.health, allow_head=False),
            web.post("/ping", server.health),
            web.get("/version", server.version, allow_head=False),
            web.get("/load", server.load, allow_head=False),
            web.get("/metrics", server.metrics, allow_head=False),
            web.get("/v1/models", server.models, allow_head=False),
            web.post("/v1/chat/completions", server.chat),
            web.post("/v1/completions", server.completions),
            web.post("/invocations", server.invocations),
            web.post("/tokenize", server.tokenize),
            web.post("/detokenize", server.detokenize),
            *(web.post(path, server.chat) for path in agent_apis.PATHS),
            web.get("/_sim/faults", server.get_faults),
            web.post("/_sim/faults", server.set_faults),
        ]
    )
    if parts.is_developer:
        app.add_routes([web.get("/server_info", server.done), web.post("/reset_prefix_cache", server.done)])
    if parts.loads_adapters:
        app.add_routes([web.post(f"/v1/{verb}_lora_adapter", server.done) for verb in ("load", "unload")])
    app.on_response_prepare.append(_mark)
    return app


async def _mark(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(cors_headers(request, request.get(_ORIGINS, ())))
    response.headers["x-simulated"] = "vllm"
    response.headers["server"] = "uvicorn"
    if response.content_type == "application/json":
        response.headers["Content-Type"] = "application/json"


async def _answered(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Return the handler's response. Errors are in vLLM's format."""
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPNotFound as error:
        shorter = request.path.rstrip("/")
        if shorter != request.path and await _has_route(request, shorter):
            return web.Response(status=307, headers={"location": f"{request.scheme}://{request.host}{shorter}"})
        return web.json_response({"detail": error.reason}, status=error.status)
    except web.HTTPException as error:
        headers = {"allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return web.json_response({"detail": error.reason}, status=error.status, headers=headers)


async def _has_route(request: web.Request, path: str) -> bool:
    """Return whether a path has a route. FastAPI redirects the same path with a slash to it."""
    found = await request.app.router.resolve(request.clone(rel_url=path))
    return found.http_exception is None or isinstance(found.http_exception, web.HTTPMethodNotAllowed)


class _VllmApi:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        arguments = parts.arguments
        self._adapters = adapters_of(arguments.lora_modules)
        self._abilities = Abilities(
            auto_tools=arguments.enable_auto_tool_choice,
            reasoning=arguments.reasoning_parser is not None,
            template_kwargs=arguments.default_chat_template_kwargs,
            seed=arguments.seed,
            adapters=frozenset(adapter.name for adapter in self._adapters),
        )
        self._arrivals = 0
        self._base = arguments.served_model_names[0]
        self._aliases = (*arguments.served_model_names, *(adapter.name for adapter in self._adapters))
        self._names = frozenset(self._aliases)
        self._soft_tokens = arguments.soft_tokens
        self._most_choices = parts.most_choices

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Call the middleware, check the API key for the paths that vLLM protects, apply CORS, and write errors in vLLM's format."""
        if not request.path.startswith(_SIMULATOR):
            refusal = await self._parts.middleware.answer(request)
            if refusal is not None:
                return refusal
        if request.method != "OPTIONS" and request.path.startswith(_GUARDED) and not self._has_key(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if is_preflight(request):
            return preflight(request, self._parts.arguments.allowed_origins)
        request[_ORIGINS] = self._parts.arguments.allowed_origins
        if request.path.startswith(_SIMULATOR):
            return await _answered(request, handler)
        return await self._counted(request, handler)

    async def _counted(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer a request, and count it. One whose client has gone counts as answered, as in vLLM."""
        started_s = asyncio.get_running_loop().time()
        try:
            response = await _answered(request, handler)
        except asyncio.CancelledError:
            self._count(request, _DISCONNECTED_STATUS, started_s)
            raise
        except Exception:
            self._count(request, _FAILED_STATUS, started_s)
            raise
        self._count(request, response.status, started_s)
        return response

    def _count(self, request: web.Request, status: int, started_s: float) -> None:
        route = request.match_info.route.resource
        handler = None if route is None else route.canonical
        duration_s = asyncio.get_running_loop().time() - started_s
        self._parts.metrics.count_request(handler, request.method, status, duration_s)

    def _has_key(self, request: web.Request) -> bool:
        keys = self._parts.api_keys
        if not keys:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
        return scheme.lower() == "bearer" and any(matches)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def done(self, _: web.Request) -> web.Response:
        """Answer for an endpoint whose work is not simulated."""
        return web.json_response({})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def load(self, _: web.Request) -> web.Response:
        """Return the load that vLLM counts only with a flag."""
        return web.json_response({"server_load": 0})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=self._parts.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def models(self, _: web.Request) -> web.Response:
        parts = self._parts
        length = parts.capacity.max_model_len
        rows: list[tuple[str, str, str | None, int | None]] = [
            *((name, parts.arguments.model, None, length) for name in parts.arguments.served_model_names),
            *((adapter.name, adapter.path, self._base, None) for adapter in self._adapters),
        ]
        form, permission = FORMS["model"], f"modelperm-{parts.created:x}"
        common = {"created": parts.created, "permission": permission}
        data = [
            filled(form, {**common, "id": name, "root": root, "parent": parent, "most": most})
            for name, root, parent, most in rows
        ]
        return web.json_response({"object": "list", "data": data})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        chat = agent_apis.as_chat(as_object(body)) if request.path in agent_apis.PATHS else body
        return await self._complete(request, chat, is_chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, await _body(request), is_chat=False)

    async def invocations(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        return await self._complete(request, body, is_chat="messages" in as_object(body))

    async def tokenize(self, request: web.Request) -> web.Response:
        body = as_object(await _body(request))
        self._check_model(body.get("model"))
        if "messages" in body:
            ids = list(read_chat(body, self._soft_tokens).prompt)
        elif isinstance(body.get("prompt"), str):
            bos = [] if body.get("add_special_tokens") is False else [tokens.BOS]
            ids = bos + tokens.encode(body["prompt"])
        else:
            prompt = Malformed("body.prompt", "missing", "Field required", body)
            chat = Malformed("body.messages", "missing", "Field required", body)
            raise malformed(prompt, chat)
        length = self._parts.capacity.max_model_len
        return web.json_response({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = as_object(await _body(request))
        self._check_model(body.get("model"))
        if "tokens" not in body:
            raise malformed(Malformed("body.tokens", "missing", "Field required", body))
        try:
            return web.json_response({"prompt": tokens.decode(as_list(body["tokens"]))})
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def get_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        return web.json_response({"faults": self._parts.faults.listed()})

    async def set_faults(self, request: web.Request) -> web.Response:
        _loopback_only(request)
        faults = as_object(await _body(request)).get("faults")
        if not isinstance(faults, list):
            raise RequestError('The body must be {"faults": [...]}.', param="faults")
        try:
            self._parts.faults.replace(as_list(cast("object", faults)))
        except FaultError as error:
            raise RequestError(f"{error}.", param="faults") from error
        return web.json_response({"faults": self._parts.faults.listed()})

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self._names:
            message = f"The model `{model}` does not exist. Valid aliases: {', '.join(self._aliases)}."
            raise RequestError(message, status=404, kind="NotFoundError", param="model")

    async def _complete(self, request: web.Request, body: Any, *, is_chat: bool) -> web.StreamResponse:  # noqa: ANN401
        arrived_at = asyncio.get_running_loop().time()
        faults = self._parts.faults.inject()
        if faults.crash:
            os._exit(_CRASH_STATUS)
        if faults.status is not None:
            return _fault_response(faults)
        broken = faults.broken
        if broken and is_chat and isinstance(body, dict):
            body = broken_body(as_object(cast("object", body)), broken)
        refuse_more_choices(body, self._most_choices)
        parsed = parse(body, is_chat=is_chat, soft_tokens=self._soft_tokens)
        if "serves_any_model" not in broken:
            self._check_model(parsed.model)
        self._check_media(parsed, broken)
        if is_chat:
            await read_media(as_object(body), self._parts.media)
        most = check_length(parsed, self._parts.capacity.max_model_len)
        self._check_queue()
        if self._parts.is_jax and any(item.kind != "image" for item in parsed.media):
            print(NO_EMBEDDINGS, file=sys.stderr, flush=True)
            signal.raise_signal(signal.SIGTERM)  # the server ends with its engine
            raise RequestError(ENGINE_DEAD, status=500, kind="InternalServerError")
        self._arrivals += 1
        made = answer(broken_request(parsed, broken), self._abilities, most=most, arrival=self._arrivals)
        call = _ReceivedRequest(
            request=request,
            parsed=parsed,
            made=made,
            model=self._base if parsed.model is None or "answers_as_base" in broken else parsed.model,
            faults=faults,
            most=most,
            arrived_at=arrived_at,
        )
        is_at_once = request.path in agent_apis.PATHS or bool(faults.answers)
        streams = parsed.stream and not is_at_once
        return await (self._stream(call) if streams else self._whole(call))

    def _check_media(self, parsed: Request, broken: AbstractSet[str]) -> None:
        if "no_audio_extra" in broken and any(item.kind == "audio" for item in parsed.media):
            # vLLM's placeholder of a missing package (utils/import_utils.py).
            raise RequestError("Please install vllm[audio] for audio support", status=500, kind="InternalServerError")
        if "no_media_limits" not in broken:
            check_items(parsed.media, self._parts.arguments, self._parts.model)

    def _check_queue(self) -> None:
        limit = self._parts.arguments.max_queued_requests
        if limit is not None and self._parts.engines.requests >= limit:
            raise RequestError(
                "The server is overloaded: too many requests are in flight. Please retry later.",
                status=503,
                kind="ServiceUnavailableError",
            )

    async def _whole(self, call: "_ReceivedRequest") -> web.StreamResponse:
        details = self._parts.arguments.enable_prompt_tokens_details
        reply = WholeReply(
            request=call.parsed, answer=call.made, model=call.model, faults=call.faults, cached_details=details
        )
        reply.sequence = call.sequence(reply)
        await self._run(reply.sequence, reply.finished)
        if reply.reset and call.request.transport is not None:
            call.request.transport.abort()
        body = reply.body()
        if call.parsed.is_chat:
            body["choices"] = [call.faults.broken_choice(body["choices"][0], is_stream=call.parsed.stream)]
        if call.request.path in agent_apis.PATHS:
            return agent_apis.reply(call.request.path, body, call.faults.broken, stream=call.parsed.stream)
        if call.parsed.stream:
            return web.Response(text=as_events(body), content_type="text/event-stream", charset="utf-8")
        return web.json_response(body)

    async def _stream(self, call: "_ReceivedRequest") -> web.StreamResponse:
        arguments = self._parts.arguments
        reply = StreamReply(
            request=call.parsed,
            answer=call.made,
            model=call.model,
            faults=call.faults,
            cached_details=arguments.enable_prompt_tokens_details,
            force_usage=arguments.enable_force_include_usage,
        )
        reply.sequence = call.sequence(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        transport = call.request.transport
        if transport is not None:
            reply.attach(transport)
            await self._run(reply.sequence, reply.finished)
        return response

    async def _run(self, sequence: Sequence, finished: asyncio.Event) -> None:
        """Run a sequence until it is complete. If the client disconnects, the request is canceled and the sequence aborted."""
        engine = self._parts.engines.submit(sequence)
        try:
            await finished.wait()
        finally:
            engine.abort(sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReceivedRequest:
    """One request: its content, the planned completion, the maximum of tokens, the time of arrival."""

    request: web.Request
    parsed: Request
    made: Completion
    model: str
    faults: RequestFaults
    most: int
    arrived_at: float

    def sequence(self, reply: StreamReply | WholeReply) -> Sequence:
        finish = self.made.finish_reason
        return Sequence(
            prompt=self.parsed.prompt,
            length=len(self.made.texts),
            max_tokens=self.most,
            finish_reason="stop" if finish == "tool_calls" else finish,
            sink=reply,
            arrived_at=self.arrived_at,
            stall=self.faults.stall,
            proposes="proposes_nothing" not in self.faults.broken,
        )


def _fault_response(faults: RequestFaults) -> web.Response:
    status = faults.status or 503
    words = {429: "Too Many Requests", 503: "Service Unavailable"}.get(status, "Injected fault")
    error = RequestError(words, status=status, kind=words.replace(" ", ""))
    headers = {} if faults.retry_after_s is None else {"Retry-After": f"{faults.retry_after_s:g}"}
    return web.json_response(error.body(), status=status, headers=headers)


async def _body(request: web.Request) -> Any:  # noqa: ANN401 - any JSON value
    text = await request.read()
    if not text:
        raise malformed(Malformed("body", "missing", "Field required", None))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        wrong = Malformed(f"body.{error.pos}", "json_invalid", "JSON decode error", {}, {"error": error.msg})
        raise malformed(wrong) from error
    except ValueError as error:
        raise RequestError("There was an error parsing the body") from error


def _loopback_only(request: web.Request) -> None:
    """Answer 404 to any caller that is not a front or a client of this machine's user, such as a web page or another user."""
    if request.transport is None:
        raise web.HTTPNotFound
    client = request.transport.get_extra_info("peername")[:2]
    server = request.transport.get_extra_info("sockname")[:2]
    passed_on = not ip_address(client[0]).is_loopback or "X-Forwarded-For" in request.headers
    if passed_on or web_page_header(request.headers) is not None or other_user(client, server):
        raise web.HTTPNotFound
    if foreign_host(request.headers.get("Host"), address=server[0], port=server[1]):
        raise web.HTTPNotFound
