"""vLLM's HTTP endpoints on the slots of a simulated server."""

import asyncio
import hmac
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from localcloud.json_values import as_list, as_object, filled
from localcloud.vllm import tokens
from localcloud.vllm.adapters import adapters_of
from localcloud.vllm.answers import Completion, NoAnswerError, completion
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.faults import ModelServerFault, PlantedFaults
from localcloud.vllm.media import ENGINE_DEAD, NO_EMBEDDINGS, MediaRules, check_items, read_media
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.middleware import Middleware, cors_headers, is_preflight, preflight
from localcloud.vllm.recorded import Model
from localcloud.vllm.replies import AGENT_PATHS, FORMS, Reply, agent_chat, agent_reply, as_events
from localcloud.vllm.requests import (
    Malformed,
    Request,
    RequestError,
    check_length,
    malformed,
    parse,
    read_chat,
    refuse_more_choices,
)
from localcloud.vllm.slots import Job, Slots

_GUARDED: Final = ("/v1", "/v2", "/inference")
_ORIGINS: Final = "allowed-origins"
_MAX_BODY_BYTES: Final = 64 * 2**20
_DISCONNECTED_STATUS: Final = 200
_FAILED_STATUS: Final = 500
_FAULT: Final = "planted-fault"
_FOREVER_S: Final = 86_400.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the application."""

    arguments: Arguments
    max_model_len: int
    version: str
    slots: Slots
    metrics: Metrics
    faults: PlantedFaults
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
            *(web.post(path, server.chat) for path in AGENT_PATHS),
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
        self._arrivals = 0
        self._base = arguments.served_model_names[0]
        self._aliases = (*arguments.served_model_names, *(adapter.name for adapter in self._adapters))
        self._names = frozenset(self._aliases)
        self._adapter_names = frozenset(adapter.name for adapter in self._adapters)
        self._soft_tokens = arguments.soft_tokens

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Call the middleware, check the API key for the paths that vLLM protects, apply CORS, and write errors in vLLM's format."""
        refusal = await self._parts.middleware.answer(request)
        if refusal is not None:
            return refusal
        if request.method != "OPTIONS" and request.path.startswith(_GUARDED) and not self._has_key(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if is_preflight(request):
            return preflight(request, self._parts.arguments.allowed_origins)
        request[_ORIGINS] = self._parts.arguments.allowed_origins
        request[_FAULT] = fault = self._parts.faults.of(request.path)
        if fault is not None and fault.status is not None:
            return _planted(fault)
        if fault is not None and fault.silent:
            await asyncio.sleep(_FOREVER_S)
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
        return web.json_response({"version": self._parts.version})

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
        length = parts.max_model_len
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
        chat = agent_chat(as_object(body)) if request.path in AGENT_PATHS else body
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
        length = self._parts.max_model_len
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

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self._names:
            message = f"The model `{model}` does not exist. Valid aliases: {', '.join(self._aliases)}."
            raise RequestError(message, status=404, kind="NotFoundError", param="model")

    async def _complete(self, request: web.Request, body: Any, *, is_chat: bool) -> web.StreamResponse:  # noqa: ANN401
        arrived_at = asyncio.get_running_loop().time()
        parts, fault = self._parts, request.get(_FAULT)
        if isinstance(fault, ModelServerFault) and isinstance(body, dict):
            body = fault.request(as_object(cast("object", body)))
        refuse_more_choices(body, parts.most_choices)
        parsed = parse(body, is_chat=is_chat, soft_tokens=self._soft_tokens)
        self._check_model(parsed.model)
        check_items(parsed.media, parts.arguments, parts.model)
        if is_chat:
            await read_media(as_object(body), parts.media)
        if parts.is_jax and set(parsed.media) & {"audio", "video"}:
            self._end_of_engine()
        most = check_length(parsed, parts.max_model_len)
        self._check_queue()
        made = self._answer(parsed, most)
        reply = Reply(
            request=parsed,
            answer=made,
            model=self._base if parsed.model is None else parsed.model,
            shows_cached=parts.arguments.enable_prompt_tokens_details,
            forces_usage=parts.arguments.enable_force_include_usage,
        )
        job = Job(
            prompt=parsed.prompt,
            length=len(made.texts),
            max_tokens=most,
            finish_reason="stop" if made.finish_reason == "tool_calls" else made.finish_reason,
            arrived_at=arrived_at,
        )
        is_at_once = request.path in AGENT_PATHS or (fault is not None and fault.broken)
        if parsed.stream and not is_at_once:
            return await self._stream(request, reply, job, fault)
        return await self._whole(request, reply, job, fault)

    @staticmethod
    def _end_of_engine() -> None:
        """End the engine of a JAX model as a sound or a video does, and with it the server."""
        print(f"Traceback (most recent call last):\n  ...\n{NO_EMBEDDINGS}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        raise RequestError(ENGINE_DEAD, status=500, kind="InternalServerError")

    def _answer(self, parsed: Request, most: int) -> Completion:
        """Return the planned answer. Free sentences vary with each request above temperature 0, and with the adapter."""
        arguments = self._parts.arguments
        self._arrivals += 1
        fixed = parsed.seed if parsed.temperature == 0 or parsed.seed is not None else self._arrivals
        if parsed.tool_choice == "auto" and not arguments.enable_auto_tool_choice:
            words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise RequestError(words, param="tool_choice")
        thinks = {**arguments.default_chat_template_kwargs, **parsed.template_kwargs}.get("enable_thinking") is True
        adapter = parsed.model if parsed.model in self._adapter_names else ""
        try:
            return completion(
                parsed,
                most=most,
                seed=f"{adapter}{arguments.seed if fixed is None else fixed}",
                thinks=thinks,
                splits_reasoning=arguments.reasoning_parser is not None,
            )
        except NoAnswerError as error:
            words = "The simulated server has no answer of this form to this prompt. localcloud/vllm/data/answers.toml lists those that it has."
            raise RequestError(words, param=str(error)) from error

    def _check_queue(self) -> None:
        limit = self._parts.arguments.max_queued_requests
        if limit is not None and self._parts.slots.requests >= limit:
            raise RequestError(
                "The server is overloaded: too many requests are in flight. Please retry later.",
                status=503,
                kind="ServiceUnavailableError",
            )

    async def _whole(
        self, request: web.Request, reply: Reply, job: Job, fault: ModelServerFault | None
    ) -> web.StreamResponse:
        async for emitted in self._parts.slots.run(job):
            if fault is not None and fault.cut is not None and emitted >= fault.cut and request.path not in AGENT_PATHS:
                _cut_off(request)
        if job.is_ended:
            reply.answer = reply.answer.ended(job.emitted)
        reply.cached, is_stream = job.cached, reply.request.stream
        body = reply.body()
        if fault is not None and reply.request.is_chat:
            body["choices"] = [fault.answer(body["choices"][0], is_stream=is_stream)]
        if request.path in AGENT_PATHS:
            whole, events = agent_reply(request.path, body)
            kept = events if fault is None or fault.cut is None else events[: fault.cut]
            return _events("".join(kept)) if is_stream else web.json_response(whole)
        return _events(as_events(body)) if is_stream else web.json_response(body)

    async def _stream(
        self, request: web.Request, reply: Reply, job: Job, fault: ModelServerFault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        start = 0
        async for emitted in self._parts.slots.run(job):
            if fault is not None and fault.cut is not None and emitted >= fault.cut:
                _cut_off(request)
            reply.cached = job.cached
            await response.write(reply.events(start, emitted).encode())
            start = emitted
        if job.is_ended:
            reply.answer = reply.answer.ended(job.emitted)
        await response.write(reply.last_events().encode())
        return response


def _cut_off(request: web.Request) -> None:
    """Cut the connection. The handler is canceled with it."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


def _events(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/event-stream", charset="utf-8")


def _planted(fault: ModelServerFault) -> web.Response:
    status = fault.status or _FAILED_STATUS
    error = RequestError(fault.message, status=status, kind=HTTPStatus(status).phrase.replace(" ", ""))
    return web.json_response(error.body(), status=status)


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
