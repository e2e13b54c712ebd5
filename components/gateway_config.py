"""Configuration of the gateway's Envoy: one address for servers in the gateway's network."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.gateway import LONGEST_REQUEST_S, backend_path

GATEWAY_PORT: Final = 8080
"""Port of Envoy on Cloud Run."""
READY_PATH: Final = "/ready"
"""Path of the startup probe. Envoy answers it itself."""
SERVER_PATHS: Final = "/(v1/.*|tokenize|detokenize|health|version)"
"""Paths that callers reach, as a regular expression. vLLM has more, and its API key guards only `/v1`."""
BACKEND_PATHS: Final = "(health|metrics)"
"""Paths of one server that callers reach with GET, below `/-/NAME/`."""
UPSTREAM_IDLE_S: Final = 3
"""Time after which Envoy closes an idle connection. vLLM closes one after 5 s, and a request in that moment would fail (llm-d#1564)."""
_RETRIES: Final = 2
"""Two other servers. Not more, because a request that crashes its server crashes those of its retries too."""
_TYPES: Final = "type.googleapis.com/envoy.extensions"

_Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServer:
    """A server in the gateway's network."""

    name: str
    """Name of its stack."""
    address: str
    """IPv4 address in the network. Envoy checks its health, so the address of a machine that ended gets no requests."""
    port: int


def gateway_config(servers: Sequence[GatewayServer]) -> str:
    """Return the text of Envoy's configuration: JSON, one value per line, so that a preview shows which line changes.

    There is at least one server. A server gets requests while its `/health` answers.
    """
    resources = {"listeners": [_listener(servers)], "clusters": list(_clusters(servers))}
    return json.dumps({"static_resources": resources}, indent=1)


def _routes(servers: Sequence[GatewayServer]) -> list[_Block]:
    return [
        *(_backend_route(server) for server in servers),
        {
            "match": {"safe_regex": {"regex": SERVER_PATHS}},
            # Cloud Run has checked the caller's token.
            "request_headers_to_remove": ["x-serverless-authorization"],
            "route": {
                "cluster": "model",
                # Envoy's default of 15 s would cut every long answer.
                "timeout": "0s",
                "retry_policy": _retries(),
            },
        },
        {
            "match": {"prefix": "/"},
            "direct_response": {
                "status": 404,
                "body": {"inline_string": '{"error": {"message": "The gateway does not serve this path."}}'},
            },
        },
    ]


def _backend_route(server: GatewayServer) -> _Block:
    return {
        "match": {
            "safe_regex": {"regex": f"{backend_path(server.name)}/{BACKEND_PATHS}"},
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "route": {
            "cluster": f"only-{server.name}",
            "regex_rewrite": {"pattern": {"regex": f"^{backend_path(server.name)}"}, "substitution": ""},
            "timeout": "15s",
        },
    }


def _retries() -> _Block:
    """Return the retries, only before an answer began, on another server."""
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


def _listener(servers: Sequence[GatewayServer]) -> _Block:
    name, router = "front", _typed("envoy.filters.http.router", "filters.http.router.v3.Router")
    manager = _typed(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        codec_type="AUTO",
        stream_idle_timeout=f"{LONGEST_REQUEST_S}s",
        request_timeout="0s",
        route_config={"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": _routes(servers)}]},
        http_filters=[_ready_filter(), router],
    )
    return {"name": name, "filter_chains": [{"filters": [manager]}], "address": _socket("0.0.0.0", GATEWAY_PORT)}


def _clusters(servers: Sequence[GatewayServer]) -> Iterator[_Block]:
    yield _model(servers)
    for server in servers:
        yield _cluster(f"only-{server.name}", [server])


def _model(servers: Sequence[GatewayServer]) -> _Block:
    """Return the cluster of all servers."""
    # Above the 1000 requests that an instance accepts.
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), 20000)
    return {
        **_cluster("model", servers),
        "lb_policy": "LEAST_REQUEST",
        # Below this share of healthy servers Envoy would send requests to unhealthy ones too.
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
            }
        ],
    }


def _cluster(name: str, servers: Sequence[GatewayServer]) -> _Block:
    endpoints = [{"endpoint": {"address": _socket(one.address, one.port), "hostname": one.name}} for one in servers]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "2s", "load_assignment": assignment}


def _socket(address: str, port: int) -> _Block:
    return {"socket_address": {"address": address, "port_value": port}}


def _typed(name: str, kind: str, **config: object) -> _Block:
    return {"name": name, "typed_config": {"@type": f"{_TYPES}.{kind}", **config}}
