"""Configuration of the gateway's Envoy: one address for servers in the gateway's network, and spare Cloud Run services behind them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from contracts.gateway import LONGEST_REQUEST_S

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
"""Another server, then a spare. Not more, because a request that crashes its server crashes those of its retries too."""
_TYPES: Final = "type.googleapis.com/envoy.extensions"
_CA_BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Certificate authorities in Envoy's distroless image."""

_Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServer:
    """A server in the gateway's network."""

    name: str
    """Name of its stack."""
    address: str
    """IPv4 address in the network. Envoy checks its health, so the address of a machine that ended gets no requests."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySpare:
    """A Cloud Run service that gets requests when no server is healthy."""

    name: str
    """Name of its stack."""
    url: str
    """Its URL, which is also the audience of tokens, such as https://gemma-l4-123.us-east4.run.app."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfigArgs:
    """The backends. At least one server or spare."""

    servers: Sequence[GatewayServer]
    spares: Sequence[GatewaySpare]
    """Spares in order: the second gets requests that the first rejects."""


def gateway_config(args: GatewayConfigArgs) -> str:
    """Return the text of Envoy's configuration: JSON, one value per line, so that a preview shows which line changes.

    A server gets requests while its `/health` answers. A spare has no health check, because each check would start a GPU.
    """
    resources = {"listeners": list(_listeners(args)), "clusters": list(_clusters(args))}
    internal = _typed("envoy.bootstrap.internal_listener", "bootstrap.internal_listener.v3.InternalListener")
    return json.dumps({"bootstrap_extensions": [internal], "static_resources": resources}, indent=1)


def _listeners(args: GatewayConfigArgs) -> Iterator[_Block]:
    address = _socket("0.0.0.0", GATEWAY_PORT)
    yield {**_listener("front", _routes(args), [_ready_filter(args)]), "address": address}
    for spare in args.spares:
        yield _spare_listener(spare)


def _routes(args: GatewayConfigArgs) -> list[_Block]:
    return [
        *(_backend_route(server) for server in args.servers),
        {
            "match": {"safe_regex": {"regex": SERVER_PATHS}},
            # Cloud Run has checked the caller's token. A spare gets the gateway's own.
            "request_headers_to_remove": ["x-serverless-authorization"],
            "route": {
                "cluster": "model",
                # Envoy's default of 15 s would cut every long answer.
                "timeout": "0s",
                "retry_policy": _retries(args),
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
            "safe_regex": {"regex": f"/-/{server.name}/{BACKEND_PATHS}"},
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "route": {
            "cluster": f"only-{server.name}",
            "regex_rewrite": {"pattern": {"regex": f"^/-/{server.name}"}, "substitution": ""},
            "timeout": "15s",
        },
    }


def _retries(args: GatewayConfigArgs) -> _Block:
    """Return the retries, only before an answer began: on another server, then on a spare."""
    policy: dict[str, Any] = {
        # `reset` covers a server that dies after it got the request and before it answered. A request changes nothing in a server, so it may run twice.
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        # Cloud Run answers 429 if it has no instance.
        "retriable_status_codes": [429, 503] if args.spares else [503],
        "num_retries": _RETRIES,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "2s"},
        "retry_host_predicate": [
            _typed("envoy.retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3.PreviousHostsPredicate")
        ],
        # Draws until one is not a server that failed. That one has the fewest requests, so of two servers three draws in four name it.
        "host_selection_retry_max_attempts": 100,
    }
    if args.spares:
        # Without it a server that died within the last ten seconds gets every retry, if it is the only one.
        name, kind = "envoy.retry_priorities.previous_priorities", "PreviousPrioritiesConfig"
        policy["retry_priority"] = _typed(name, f"retry.priority.previous_priorities.v3.{kind}", update_frequency=2)
    return policy


def _ready_filter(args: GatewayConfigArgs) -> _Block:
    """Return the answer of `/ready`. Without spares it needs one healthy server, so `pulumi up` finds a wrong network or firewall rule.

    With a spare it needs none, or a new instance could not start while only the spare serves.
    """
    healthy = {} if args.spares else {"cluster_min_healthy_percentages": {"model": {"value": 1}}}
    return _typed(
        "envoy.filters.http.health_check",
        "filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": READY_PATH}}],
        **healthy,
    )


def _spare_listener(spare: GatewaySpare) -> _Block:
    """Return the listener of a spare, which adds the identity token. Only Envoy itself reaches it.

    `gcp_authn` reads one audience from the route's cluster, and the front's cluster has many backends.
    """
    token = _typed(
        "envoy.filters.http.gcp_authn",
        "filters.http.gcp_authn.v3.GcpAuthnFilterConfig",
        cluster="metadata",
        timeout="5s",
        cache_config={"cache_size": 1},
        # The caller's API key stays in Authorization.
        token_header={"name": "x-serverless-authorization", "value_prefix": "Bearer "},
    )
    route = {"cluster": f"spare-{spare.name}", "timeout": "0s", "auto_host_rewrite": True}
    listener = _listener(f"spare-{spare.name}", [{"match": {"prefix": "/"}, "route": route}], [token])
    return {**listener, "internal_listener": {}}


def _listener(name: str, routes: Sequence[_Block], filters: Sequence[_Block]) -> _Block:
    router = _typed("envoy.filters.http.router", "filters.http.router.v3.Router")
    manager = _typed(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        codec_type="AUTO",
        stream_idle_timeout=f"{LONGEST_REQUEST_S}s",
        request_timeout="0s",
        route_config={"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": list(routes)}]},
        http_filters=[*filters, router],
    )
    return {"name": name, "filter_chains": [{"filters": [manager]}]}


def _clusters(args: GatewayConfigArgs) -> Iterator[_Block]:
    yield _model(args)
    for server in args.servers:
        yield _cluster(f"only-{server.name}", [[_endpoint(server.address, server.port, server.name)]])
    for spare in args.spares:
        yield _spare(spare)
    if args.spares:
        yield _cluster("metadata", [[_endpoint("metadata.google.internal", 80)]], kind="STRICT_DNS")


def _model(args: GatewayConfigArgs) -> _Block:
    """Return the cluster of all backends: the servers first, then each spare, by its listener."""
    servers = [_endpoint(server.address, server.port, server.name) for server in args.servers]
    spares = [[_by_listener(spare)] for spare in args.spares]
    cluster = _cluster("model", [group for group in (servers, *spares) if group])
    # With Envoy's 140, a spare gets a share of the requests as soon as fewer than 72 % of the servers are healthy.
    cluster["load_assignment"]["policy"] = {"overprovisioning_factor": 10000}
    # Above the 1000 requests that an instance accepts.
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), 20000)
    return {
        **cluster,
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


def _by_listener(spare: GatewaySpare) -> _Block:
    """Return the endpoint of a spare's listener. It always counts as healthy."""
    return {
        "endpoint": {
            "address": {"envoy_internal_address": {"server_listener_name": f"spare-{spare.name}"}},
            "health_check_config": {"disable_active_health_check": True},
        }
    }


def _spare(spare: GatewaySpare) -> _Block:
    url = urlsplit(spare.url)
    host = url.hostname or ""
    cluster = _cluster(f"spare-{spare.name}", [[_endpoint(host, url.port or 443, url.netloc)]], kind="LOGICAL_DNS")
    audience = {"@type": f"{_TYPES}.filters.http.gcp_authn.v3.Audience", "url": spare.url}
    cluster["metadata"] = {"typed_filter_metadata": {"envoy.filters.http.gcp_authn": audience}}
    return {**cluster, "transport_socket": _tls(host)} if url.scheme == "https" else cluster


def _tls(host: str) -> _Block:
    # Cloud Run's certificates have names such as *.a.run.app.
    names = [{"san_type": "DNS", "matcher": {"suffix": ".run.app"}}]
    return _typed(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.UpstreamTlsContext",
        sni=host,
        common_tls_context={
            "validation_context": {"trusted_ca": {"filename": _CA_BUNDLE}, "match_typed_subject_alt_names": names}
        },
    )


def _cluster(name: str, groups: Sequence[Sequence[_Block]], *, kind: str = "STATIC") -> dict[str, Any]:
    """Return a cluster. A group of endpoints gets requests when those before it have no healthy one."""
    endpoints = [{"priority": priority, "lb_endpoints": list(group)} for priority, group in enumerate(groups)]
    assignment = {"cluster_name": name, "endpoints": endpoints}
    cluster = {"name": name, "type": kind, "connect_timeout": "2s", "load_assignment": assignment}
    # By default Envoy prefers IPv6, which Cloud Run's egress does not have.
    return cluster if kind == "STATIC" else {**cluster, "dns_lookup_family": "V4_ONLY"}


def _endpoint(address: str, port: int, hostname: str | None = None) -> _Block:
    named = {} if hostname is None else {"hostname": hostname}
    return {"endpoint": {"address": _socket(address, port), **named}}


def _socket(address: str, port: int) -> _Block:
    return {"socket_address": {"address": address, "port_value": port}}


def _typed(name: str, kind: str, **config: object) -> _Block:
    return {"name": name, "typed_config": {"@type": f"{_TYPES}.{kind}", **config}}
