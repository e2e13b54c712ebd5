"""Configuration of the gateway's Envoy: one address for servers in the gateway's network."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemma_serving.contracts.gateway import (
    BUFFER_KIB,
    CONCURRENCY,
    GATEWAY_MIB,
    LONGEST_REQUEST_S,
    OUTSIDE_HEAP_MIB,
    backend_path,
)

GATEWAY_PORT: Final = 8080
READY_PATH: Final = "/ready"
"""Path of the startup probe. Envoy answers it itself."""
SERVER_PATHS: Final = (
    "/v1/(chat/completions|completions|models|messages(/count_tokens)?)",
    r"/v1/responses(/resp_[\w-]+(/cancel)?)?",
    "/(tokenize|detokenize|health|version)",
)
"""Paths that callers reach, as regular expressions: those of the SDKs of OpenAI, LangChain, LlamaIndex and Anthropic, and of this project.

vLLM has more: adapters, rendering, scores, weights, profiles; and its API key guards only `/v1`. Envoy rejects a longer expression.
"""
METHODS: Final = "GET|HEAD|POST"
"""Methods of all these clients. A request with another one reaches no server."""
BACKEND_PATHS: Final = "(health|metrics)"
"""Paths of one server that callers reach with GET, below `/-/NAME/`."""
UPSTREAM_IDLE_S: Final = 3
"""Time after which Envoy closes an idle connection. vLLM closes one after 5 s, and a request in that moment fails (llm-d#1564)."""
REQUEST_BODY_S: Final = 60
"""Time for a whole request to arrive. It expires before the answer starts, so it cuts no answer."""
REQUEST_HEADERS_S: Final = 10
_RETRIES: Final = 2
"""Two other servers. Not more, because a request that crashes its server also crashes the servers of its retries."""
CALLERS_IDENTITY: Final = r"(.*[ ,\t])?eyJ[\w-]*\.eyJ[\w-]*\..*"
"""Value of `Authorization` with a caller's identity token, with or without a scheme, and with or without the signature that Cloud Run removes.
An API key has another form."""
REMOVED_HEADERS: Final = ("x-serverless-authorization", "cookie", "x-original-url", "x-rewrite-url")
"""Headers that no server gets: the caller's identity token and cookies, and paths that some servers read in place of the request's."""
_TYPES: Final = "type.googleapis.com/envoy.extensions"

_Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServer:
    """A server in the gateway's network."""

    name: str
    address: str
    """IPv4 address in the network. Envoy checks its health, so the address of a machine that ended gets no requests."""
    port: int


def gateway_config(servers: Sequence[GatewayServer], stack: str) -> str:
    """Return the text of Envoy's configuration: JSON, one value per line, so a preview shows which line changes.

    It has at least one server. A server gets requests while its `/health` answers. `stack` is the gateway's, for the operator's command in errors.
    """
    resources = {"listeners": [_listener(servers, stack)], "clusters": list(_clusters(servers))}
    return json.dumps({"overload_manager": _overload_manager(), "static_resources": resources}, indent=1)


def _overload_manager() -> _Block:
    """Return the answer to a full instance: 503 at 90 % of the heap. Above its memory, Cloud Run terminates it with all its requests."""
    heap, connections = "fixed_heap", "global_downstream_max_connections"
    trigger = {"name": f"envoy.resource_monitors.{heap}", "threshold": {"value": 0.9}}
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            _typed(
                f"envoy.resource_monitors.{heap}",
                f"resource_monitors.{heap}.v3.FixedHeapConfig",
                max_heap_size_bytes=(GATEWAY_MIB - OUTSIDE_HEAP_MIB) * 1024**2,
            ),
            _typed(
                f"envoy.resource_monitors.{connections}",
                "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                # Cloud Run keeps idle connections too.
                max_active_downstream_connections=4 * CONCURRENCY,
            ),
        ],
        "actions": [
            {"name": f"envoy.overload_actions.{action}", "triggers": [trigger]}
            for action in ("shrink_heap", "stop_accepting_requests")
        ],
    }


def _routes(servers: Sequence[GatewayServer]) -> Iterator[_Block]:
    # Envoy's default of 15 s cuts every long answer.
    to_model: _Block = {"cluster": "model", "timeout": "0s", "retry_policy": _retries()}
    methods = [{"name": ":method", "string_match": _regex(METHODS)}]
    models: Sequence[_Block] = [
        {"match": {**_regex(paths), "headers": methods}, "route": to_model} for paths in SERVER_PATHS
    ]
    for route in (*map(_backend_route, servers), *models):
        headers = [
            *route["match"].get("headers", ()),
            {"name": "authorization", "string_match": _regex(CALLERS_IDENTITY)},
        ]
        match = {**route["match"], "headers": headers}
        yield {**route, "match": match, "request_headers_to_remove": ["authorization"]}
        yield route  # the header, if any, has the servers' API key
    yield {"match": {"prefix": "/"}, "direct_response": {"status": 404}}


def _backend_route(server: GatewayServer) -> _Block:
    return {
        "match": {
            **_regex(f"{backend_path(server.name)}/{BACKEND_PATHS}"),
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "route": {
            "cluster": f"only-{server.name}",
            "regex_rewrite": {"pattern": {"regex": f"^{backend_path(server.name)}"}, "substitution": ""},
            "timeout": "15s",
        },
    }


def _retries() -> _Block:
    """Return the retries, only before the start of an answer, on another server."""
    return {
        # `reset` covers a server that dies after it got the request and before it answered. A request changes nothing in a server, so it may run twice.
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": _RETRIES,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "2s"},
        "retry_host_predicate": [
            _typed("envoy.retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3.PreviousHostsPredicate")
        ],
        # Draws until one is not a server that failed. That one has the fewest requests, so of two servers three draws in four name it.
        "host_selection_retry_max_attempts": 100,
    }


def _ready_filter() -> _Block:
    """Return the answer of `/ready`. It needs one healthy server, so `pulumi up` finds a wrong network or firewall rule."""
    return _typed(
        "envoy.filters.http.health_check",
        "filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": READY_PATH}}],
        cluster_min_healthy_percentages={"model": {"value": 1}},
    )


def _listener(servers: Sequence[GatewayServer], stack: str) -> _Block:
    name, router = "front", _typed("envoy.filters.http.router", "filters.http.router.v3.Router")
    host = {
        "name": name,
        "domains": ["*"],
        "routes": list(_routes(servers)),
        "request_headers_to_remove": [*REMOVED_HEADERS],
    }
    manager = _typed(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        codec_type="HTTP1",  # Cloud Run's front end sends no HTTP/2 to this port
        stream_idle_timeout=f"{LONGEST_REQUEST_S}s",
        request_timeout=f"{REQUEST_BODY_S}s",
        request_headers_timeout=f"{REQUEST_HEADERS_S}s",
        common_http_protocol_options={"headers_with_underscores_action": "REJECT_REQUEST"},
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        route_config={"name": name, "virtual_hosts": [host]},
        http_filters=[_ready_filter(), router],
        access_log=[_failed_requests()],
        local_reply_config=_errors(stack),
    )
    return {
        "name": name,
        "filter_chains": [{"filters": [manager]}],
        "address": _socket("0.0.0.0", GATEWAY_PORT),
        "per_connection_buffer_limit_bytes": BUFFER_KIB * 1024,
    }


def _at_least(status: int, op: str = "GE") -> _Block:
    value = {"default_value": status, "runtime_key": f"gateway.{op.lower()}_{status}"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}


def _failed_requests() -> _Block:
    """Return the log of requests that failed for other reasons than the caller, one line each."""
    words = (
        "failed: %REQ(:METHOD)% %REQ_WITHOUT_QUERY(:PATH)% status %RESPONSE_CODE% %RESPONSE_FLAGS% (%RESPONSE_CODE_DETAILS%)",
        "backend %UPSTREAM_HOST_NAME% %UPSTREAM_HOST%",
        "%UPSTREAM_REQUEST_ATTEMPT_COUNT% tries in %DURATION% ms\n",
    )
    query = _typed("envoy.formatter.req_without_query", "formatter.req_without_query.v3.ReqWithoutQuery")
    log = _typed(
        "envoy.access_loggers.stdout",
        "access_loggers.stream.v3.StdoutAccessLog",
        log_format={"text_format_source": {"inline_string": ", ".join(words)}, "formatters": [query]},
    )
    # A stream that a server cut has status 200.
    cut = {"response_flag_filter": {"flags": ["UC", "UR", "UPE", "SI"]}}
    failed = {"or_filter": {"filters": [_at_least(500), cut]}}
    return {**log, "filter": {"and_filter": {"filters": [failed, {"not_health_check_filter": {}}]}}}


def _errors(stack: str) -> _Block:
    """Return the errors of Envoy itself, as JSON of the shape that OpenAI's clients expect."""
    messages = {
        404: "The gateway does not serve this path.",
        408: f"The request was not complete after {REQUEST_BODY_S} s.",
        503: "No server behind the gateway answered (%RESPONSE_CODE_DETAILS%). "
        f"Send the request again later; the gateway's operator runs `gemma status {stack}`.",
    }
    mappers = [
        {"filter": _at_least(status, "EQ"), "body_format_override": _error(text)} for status, text in messages.items()
    ]
    return {"mappers": mappers, "body_format": _error("The gateway rejected the request (%RESPONSE_CODE_DETAILS%).")}


def _error(message: str) -> _Block:
    return {"json_format": {"error": {"message": message, "type": "gateway_error", "code": "%RESPONSE_CODE%"}}}


def _clusters(servers: Sequence[GatewayServer]) -> Iterator[_Block]:
    yield _model(servers)
    for server in servers:
        yield _cluster(f"only-{server.name}", [server])


def _model(servers: Sequence[GatewayServer]) -> _Block:
    """Return the cluster of all servers."""
    # Above the requests that an instance accepts.
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), 20000)
    return {
        **_cluster("model", servers),
        "lb_policy": "LEAST_REQUEST",
        # Below this share of healthy servers Envoy sends requests to unhealthy ones too.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": f"{UPSTREAM_IDLE_S}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "circuit_breakers": {"thresholds": [limits]},
        "health_checks": [
            {
                "timeout": "3s",
                "interval": "5s",
                "no_traffic_interval": "5s",  # by default an instance without requests checks once a minute
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
                "event_logger": [
                    _typed(
                        "envoy.health_check.event_sinks.file",
                        "health_check.event_sinks.file.v3.HealthCheckEventFileSink",
                        event_log_path="/dev/stdout",
                    )
                ],
            }
        ],
    }


def _cluster(name: str, servers: Sequence[GatewayServer]) -> _Block:
    """Return a cluster with the servers as its endpoints, by name and address."""
    endpoints = [{"endpoint": {"address": _socket(one.address, one.port), "hostname": one.name}} for one in servers]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "per_connection_buffer_limit_bytes": BUFFER_KIB * 1024,
        "load_assignment": assignment,
    }


def _regex(pattern: str) -> _Block:
    return {"safe_regex": {"regex": pattern}}


def _socket(address: str, port: int) -> _Block:
    return {"socket_address": {"address": address, "port_value": port}}


def _typed(name: str, kind: str, **config: object) -> _Block:
    return {"name": name, "typed_config": {"@type": f"{_TYPES}.{kind}", **config}}
