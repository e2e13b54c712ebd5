"""vLLM's HTTP endpoints on the slots of a simulated server."""

import asyncio
import hmac
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from localcloud.json_values import JsonObject, as_list, as_object, filled
from localcloud.vllm import tokens
from localcloud.vllm.answers import completion
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.boot import KvCacheSize, Start
from localcloud.vllm.faults import ModelServerFault, PlantedFaults
from localcloud.vllm.media import read_media
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.middleware import Middleware, cors_headers, is_preflight, preflight
from localcloud.vllm.recorded import Model
from localcloud.vllm.replies import AGENT_PATHS, FORMS, Reply, agent_chat, agent_reply
from localcloud.vllm.requests import (
    Malformed,
    Request,
    RequestError,
    check_items,
    check_length,
    malformed,
    missing,
    parse,
    read_chat,
    refuse_request,
    text_ids,
)
from localcloud.vllm.settings import RuntimeEnvironment
from localcloud.vllm.slots import Job, Slots, drafts_of, recorded_pace

_GUARDED: Final = ("/v1", "/v2", "/inference")
_ORIGINS: Final = "allowed-origins"
_MAX_BODY_BYTES: Final = 64 * 2**20
_DISCONNECTED_STATUS: Final = 200
_FAILED_STATUS: Final = 500
_FAULT: Final = "planted-fault"
_FOREVER_S: Final = 86_400.0
_NO_EMBEDDINGS: Final = (
    "AssertionError: Expected number of multimodal embeddings to match number of input items: 1, but got len(mm_embeddings)=0 instead. "
    "This is most likely due to incorrect implementation of the model's `embed_multimodal` method."
)
"""End of the traceback of a JAX model's engine after a sound or a video: `embed_multimodal` returns only embeddings of images, and the runner requires one of
each item (tpu-inference 0.32.0, models/jax/gemma4_mm.py and models/jax/utils/multi_modal_utils.py). The server exits with its engine, as
in https://github.com/vllm-project/tpu-inference/issues/957 after a video for Qwen2.5-VL (vLLM, entrypoints/launcher.py, terminate_if_errored)."""
_ENGINE_DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
"""Message of the requests that a dead engine had (vLLM, v1/engine/exceptions.py)."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class VllmApi:
    """The endpoints of a started server."""

    def __init__(
        self,
        arguments: Arguments,
        environment: RuntimeEnvironment,
        start: Start,
        *,
        loaded: tuple[Model, KvCacheSize],
        faults: PlantedFaults,
        middleware: Middleware,
    ) -> None:
        self._arguments, self._environment, self._is_jax = arguments, environment, start.is_jax
        self._faults, self._middleware = faults, middleware
        self._model, self._capacity = loaded
        self._created = int(time.time())
        self._adapters = [adapter.name for adapter in arguments.lora_modules]
        self._names = [*arguments.served_model_name, *self._adapters]
        drafts = drafts_of(arguments.speculative_config)
        self._metrics = Metrics(
            arguments.served_model_name[0],
            self._cache_config(is_tpu=start.card.kind == "tpu"),
            has_drafts=drafts.proposals > 0,
            max_loras=arguments.unused.get("max_loras", 1) if arguments.enable_lora else 0,
            replicas=arguments.data_parallel_size,
        )
        pace = recorded_pace(
            self._model,
            start.card,
            arguments.tensor_parallel_size,
            drafts=drafts,
            speed=environment.speed,
            ttft_s=environment.ttft_s,
            tpot_s=environment.tpot_s,
        )
        self.slots = Slots(
            capacity=self._capacity,
            replicas=arguments.data_parallel_size,
            pace=pace,
            metrics=self._metrics,
            caches=arguments.enable_prefix_caching,
        )

    def _cache_config(self, *, is_tpu: bool) -> Mapping[str, object]:
        return {
            "block_size": self._capacity.block_size,
            "cache_dtype": self._arguments.kv_cache_dtype,
            "enable_prefix_caching": self._arguments.enable_prefix_caching,
            "gpu_memory_utilization": self._arguments.gpu_memory_utilization,
            "is_attention_free": False,
            "num_cpu_blocks": None,
            "num_gpu_blocks": self._capacity.num_blocks,
            "num_gpu_blocks_override": None,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None if is_tpu else self._model.window,
        }

    def application(self) -> web.Application:
        """Return the application. Every response has the header `x-simulated: vllm`."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._middleware_and_key])
        fixed: dict[str, JsonObject] = {
            "GET /version": {"version": self._environment.version},
            "GET /load": {"server_load": 0},  # vLLM counts it only with a flag
        }
        if self._environment.is_developer:
            fixed |= {"GET /server_info": {}, "POST /reset_prefix_cache": {}}
        if self._environment.loads_adapters:
            fixed |= {"POST /v1/load_lora_adapter": {}, "POST /v1/unload_lora_adapter": {}}
        handlers: dict[str, _Handler] = {
            **dict.fromkeys(("GET /health", "GET /ping", "POST /ping"), self._health),
            **{route: _fixed(body) for route, body in fixed.items()},
            "GET /metrics": self._metrics_page,
            "GET /v1/models": self._models,
            "POST /tokenize": self._tokenize,
            "POST /detokenize": self._detokenize,
            "POST /v1/completions": self._completions,
            "POST /invocations": self._completions,
            **dict.fromkeys(("POST /v1/chat/completions", *(f"POST {path}" for path in AGENT_PATHS)), self._chat),
        }
        for route, handler in handlers.items():
            method, _, path = route.partition(" ")
            app.router.add_route(method, path, handler)
        app.on_response_prepare.append(_mark)
        return app

    @web.middleware
    async def _middleware_and_key(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Call the middleware, check the API key for the paths that vLLM protects, apply CORS, and write errors in vLLM's format."""
        refusal = await self._middleware.answer(request)
        if refusal is not None:
            return refusal
        if request.method != "OPTIONS" and request.path.startswith(_GUARDED) and not self._has_key(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if is_preflight(request):
            return preflight(request, self._arguments.allowed_origins)
        request[_ORIGINS] = self._arguments.allowed_origins
        request[_FAULT] = fault = self._faults.of(request.path)
        if fault is not None and fault.status is not None:
            kind = HTTPStatus(fault.status).phrase.replace(" ", "")
            return _error(RequestError(fault.message, status=fault.status, kind=kind))
        if fault is not None and fault.silent:
            await asyncio.sleep(_FOREVER_S)
        return await self._counted(request, handler)

    async def _counted(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer a request, and count it. One whose client has gone counts as answered, as in vLLM."""
        loop = asyncio.get_running_loop()
        started_s, status = loop.time(), _FAILED_STATUS
        try:
            response = await _answered(request, handler)
            status = response.status
        except asyncio.CancelledError:
            status = _DISCONNECTED_STATUS
            raise
        finally:
            route = request.match_info.route.resource
            path = None if route is None else route.canonical
            self._metrics.count_request(path, request.method, status, loop.time() - started_s)
        return response

    def _has_key(self, request: web.Request) -> bool:
        keys = self._arguments.api_key or [key for key in (self._environment.api_key,) if key]
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
        return not keys or (scheme.lower() == "bearer" and any(matches))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics_page(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(text=self._metrics.text(), headers=headers)

    async def _models(self, _: web.Request) -> web.Response:
        arguments, length = self._arguments, self._capacity.max_model_len
        rows: list[JsonObject] = [
            *({"id": name, "root": arguments.model, "most": length} for name in arguments.served_model_name),
            *(
                {"id": adapter.name, "root": adapter.path, "parent": arguments.served_model_name[0]}
                for adapter in arguments.lora_modules
            ),
        ]
        common = {"created": self._created, "permission": f"modelperm-{self._created:x}"}
        data = [filled(FORMS["model"], {**common, **row}) for row in rows]
        return web.json_response({"object": "list", "data": data})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        chat = agent_chat(as_object(body)) if request.path in AGENT_PATHS else body
        return await self._complete(request, chat, is_chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        is_chat = request.path == "/invocations" and "messages" in as_object(body)
        return await self._complete(request, body, is_chat=is_chat)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = as_object(await _body(request))
        refuse_request("requests", {"model": body.get("model"), **self._facts()})
        if "messages" in body:
            ids = list(read_chat(body, self._arguments.soft_tokens).prompt)
        elif isinstance(body.get("prompt"), str):
            ids = text_ids(body["prompt"], body)
        else:
            raise malformed(missing("body.prompt", body), missing("body.messages", body))
        length = self._capacity.max_model_len
        return web.json_response({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = as_object(await _body(request))
        refuse_request("requests", {"model": body.get("model"), **self._facts()})
        if "tokens" not in body:
            raise malformed(missing("body.tokens", body))
        return web.json_response({"prompt": tokens.decode(as_list(body["tokens"]))})

    def _facts(self) -> JsonObject:
        """Return what the rows of refusals compare a request with."""
        return {
            "most_choices": self._environment.most_choices,
            "names": self._names,
            "aliases": ", ".join(self._names),
            "enable_auto_tool_choice": self._arguments.enable_auto_tool_choice,
            "image_tokens": self._arguments.soft_tokens,
        }

    async def _complete(self, request: web.Request, body: Any, *, is_chat: bool) -> web.StreamResponse:  # noqa: ANN401
        arrived_at = asyncio.get_running_loop().time()
        arguments, fault = self._arguments, request.get(_FAULT)
        if isinstance(fault, ModelServerFault) and isinstance(body, dict):
            body = fault.request(as_object(cast("object", body)))
        parsed = parse(body, is_chat=is_chat, server=self._facts())
        media = parsed.chat.media
        check_items(media, arguments, self._model)
        if is_chat:
            await read_media(as_object(body), arguments, redirects=self._environment.follows_redirects)
        if self._is_jax and set(media) & {"audio", "video"}:
            _end_engine()
        most = check_length(parsed, self._capacity.max_model_len)
        adapter = parsed.model if parsed.model in self._adapters else ""
        reply = self._reply(parsed, most, adapter)
        made = reply.answer
        job = Job(
            prompt=parsed.chat.prompt,
            length=len(made.texts),
            adapter=adapter,
            finish_reason="stop" if made.finish_reason == "tool_calls" else made.finish_reason,
            arrived_at=arrived_at,
        )
        return await self._delivered(request, reply, job, fault)

    def _reply(self, parsed: Request, most: int, adapter: str) -> Reply:
        arguments = self._arguments
        thinks = {**arguments.default_chat_template_kwargs, **parsed.template_kwargs}.get("enable_thinking") is True
        answer = completion(
            parsed,
            most=most,
            adapter=adapter,
            thinks=thinks,
            splits_reasoning=arguments.reasoning_parser is not None,
        )
        return Reply(
            request=parsed,
            answer=answer,
            model=arguments.served_model_name[0] if parsed.model is None else parsed.model,
        )

    async def _delivered(
        self, request: web.Request, reply: Reply, job: Job, fault: ModelServerFault | None
    ) -> web.StreamResponse:
        """Send the tokens of a stream as they come; a body, an answer of an API for agents and a broken one after the last."""
        is_agent, is_stream = request.path in AGENT_PATHS, reply.request.stream
        cut = None if fault is None else fault.cut
        stream: web.StreamResponse | None = None
        if is_stream and not is_agent and (fault is None or not fault.broken):
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await stream.prepare(request)
        start = 0
        async for emitted in self.slots.run(job):
            if cut is not None and emitted >= cut and not is_agent:
                _cut_off(request)
            if stream is not None:
                await stream.write(reply.events(start, emitted).encode())
            start = emitted
        if job.is_ended:
            reply.answer = reply.answer.ended(job.emitted)
        if stream is not None:
            await stream.write(reply.last_events(reply.answer.finish_reason).encode())
            return stream
        body = reply.body()
        if fault is not None and reply.request.is_chat:
            body["choices"] = [fault.answer(body["choices"][0], is_stream=is_stream)]
        if is_agent:
            whole, events = agent_reply(request.path, body)
            return _events("".join(events[:cut])) if is_stream else web.json_response(whole)
        return _events(reply.as_events(body["choices"][0])) if is_stream else web.json_response(body)


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
        return _error(error)
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


def _fixed(body: JsonObject) -> _Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return answer


def _end_engine() -> None:
    """End the engine of a JAX model as a sound or a video does, and with it the server."""
    print(f"Traceback (most recent call last):\n  ...\n{_NO_EMBEDDINGS}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    raise RequestError(_ENGINE_DEAD, status=500, kind="InternalServerError")


def _cut_off(request: web.Request) -> None:
    """Cut the connection. The handler is canceled with it."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


def _events(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/event-stream", charset="utf-8")


def _error(error: RequestError) -> web.Response:
    return web.json_response(error.body(), status=error.status)


async def _body(request: web.Request) -> Any:  # noqa: ANN401 - any JSON value
    text = await request.read()
    if not text:
        raise malformed(missing("body", None))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        wrong = Malformed(f"body.{error.pos}", "json_invalid", "JSON decode error", {}, {"error": error.msg})
        raise malformed(wrong) from error
    except ValueError as error:
        raise RequestError("There was an error parsing the body") from error
