"""Alerts name metrics that exist, bounds that vLLM has, and values of the stack."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gemma_serving.components.dashboard import TILES
from gemma_serving.contracts.alerts import RUNBOOK, TTFT_BUCKETS_S, AlertValues, alerts_of, every_alert
from gemma_serving.contracts.collector import (
    LONGEST_INTERVAL_S,
    collector_config,
    server_share,
)
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.fields import check_block
from gemma_serving.planning.settings.observability import MetricsSettings
from localcloud.services import monitoring_rules
from localcloud.vllm.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
VALUES = AlertValues(
    stack="x", name="gemma-x", ttft_s=2.5, ttft_goal=0.99, idle_s=1800, ready_s=3600, usd_per_hour=1.5, daily_usd=36.0
)
FUNCTIONS = {
    "and", "by", "count_over_time", "histogram_quantile", "increase", "last_over_time", "le", "max",
    "engine", "label_replace",
    "max_over_time", "min", "min_over_time", "namespace", "instance", "offset", "on", "or", "rate", "sum", "time", "unless",
}  # fmt: skip
PLATFORM_METRICS = {
    "run_googleapis_com:container_billable_instance_time",
    "run_googleapis_com:request_count",
    "tpu_googleapis_com:cpu_utilization",
}
AGENT_METRICS = {"gemma_serving_phase", "gemma_serving_restarts_total", "gemma_serving_deadline_timestamp_seconds"}
CONFIGURATION = json.loads(collector_config(project="p", namespace="n", cluster="c", ports=(8000,), interval_s=30))
(JOB,) = CONFIGURATION["receivers"]["prometheus"]["config"]["scrape_configs"]
KEPT = re.compile(JOB["metric_relabel_configs"][0]["regex"])
SYNTHETIC = {"up"}
"""Series that the collector itself writes."""


def metrics_in(expression):
    """Return the names of metrics in an expression: every word that is no function, keyword, matcher, text or duration."""
    without = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    return set(re.findall(r"(?<![\w.])[a-zA-Z_][\w:]*", without)) - FUNCTIONS


def series():
    """Return the names of series and the bounds of TTFT that the simulated server serves after one request of each kind."""
    metrics = Metrics("m", {"block_size": "16"}, max_model_len=4096, proposals=3)
    metrics.count_request("/v1/completions", "POST", 200, 0.1)
    (engine,) = metrics.engines
    for name in metrics.gauges.keys() - {"num_requests_waiting_by_reason"}:
        engine.show(name, lambda: 1)
    lines = metrics.text().splitlines()
    names = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    bounds = {
        re.search(r'le="([^"]+)"', line)[1]
        for line in lines
        if line.startswith("vllm:time_to_first_token_seconds_bucket")
    }
    return names, bounds


@pytest.fixture(scope="module")
def served():
    return series()


def expressions():
    yield from (
        VALUES.replace_in(each.expression) for alert in every_alert() for each in alert.conditions if each.expression
    )
    yield from (line.replace("$server", 'namespace="gemma-x"') for tile in TILES for line in tile.lines.values())


def test_every_metric_of_an_alert_or_a_tile_is_served_by_the_server_the_agent_or_the_platform(served):
    known = served[0] | PLATFORM_METRICS | AGENT_METRICS | SYNTHETIC
    named = set().union(*map(metrics_in, expressions()))
    assert {"vllm:num_requests_waiting", "http_requests_total", "up", "gemma_serving_phase"} <= named
    assert named - known == set()


def test_google_accepts_every_expression_and_the_local_cloud_knows_the_resource_types_of_every_platform_metric():
    selected = {name for text in expressions() for name in monitoring_rules.metrics_in(text)}
    assert selected & monitoring_rules.PLATFORM_METRICS.keys() >= PLATFORM_METRICS


def test_the_collector_keeps_every_metric_of_an_alert_or_a_tile():
    named = set().union(*map(metrics_in, expressions())) - PLATFORM_METRICS - SYNTHETIC
    dropped = {name for name in named if not KEPT.fullmatch(name)}
    assert dropped == set()


@pytest.mark.parametrize("bound", TTFT_BUCKETS_S)
def test_every_limit_of_the_first_token_is_a_bound_of_the_histogram(served, bound):
    expression = replace(VALUES, ttft_s=bound).replace_in("$ttft")
    found = re.fullmatch(r'le(=~?)"(.*)"', expression)
    assert any(re.fullmatch(found[2] if found[1] == "=~" else re.escape(found[2]), each) for each in served[1])


def test_no_placeholder_is_left_and_every_series_is_the_servers_own():
    for alert in every_alert():
        for condition in alert.conditions:
            text = VALUES.replace_in(condition.expression)
            assert "$" not in text + VALUES.replace_in(condition.hold), alert.title
            for braces in re.findall(r"\{([^}]*)\}", text):
                own = ('namespace="gemma-x"', 'service_name="gemma-x"', 'node_id=~"gemma-x(-b)?-node"')
                assert any(label in braces for label in own), alert.title
    for alert in every_alert():
        assert "$" not in VALUES.replace_in(alert.command)


ON_TPU = [
    "Not ready",
    "No tokens while requests wait",
    "Restart loop",
    "HTTP errors",
    "Slow first token",
    "Pressure",
    "Idle",
]


@pytest.mark.parametrize(
    ("target", "given", "titles"),
    [
        ("tpu", {"collects": True}, [*ON_TPU, "Engine fatal"]),
        ("tpu", {"collects": True, "has_budget": True}, [*ON_TPU, "Daily cost", "Engine fatal"]),
        ("tpu", {"has_budget": True}, ["Engine fatal"]),
        ("cloud-run", {}, ["Server errors", "Daily cost", "Does not start or engine fatal"]),
        (
            "cloud-run",
            {"collects": True, "has_budget": True},
            ["Pressure", "Server errors", "Daily cost", "Does not start or engine fatal"],
        ),
        ("gateway", {}, ["No server answers"]),
    ],
)
def test_each_target_has_its_alerts(target, given, titles):
    assert [one.title for one in alerts_of(target, **given)] == titles


@pytest.mark.parametrize(
    ("cpu", "memory_gib", "server"),
    [(8, 32, (6, 24)), (6, 24, (4, 16)), (8, 20, (6, 19.5)), (22, 82, (20, 80))],
)
def test_the_parts_of_an_instance_are_sizes_that_cloud_run_has_and_add_up(cpu, memory_gib, server):
    share = server_share(cpu, memory_gib)
    assert share == server
    assert (cpu - share[0]) * 4 >= memory_gib - share[1] >= 0.5


def test_every_alert_has_a_runbook_with_its_first_command():
    sections = (ROOT / RUNBOOK).read_text().split("\n### ")[1:]
    page = {section.partition("\n")[0]: section for section in sections}
    assert set(page) == {alert.title for alert in every_alert()}
    for alert in every_alert():
        assert f"Run `{alert.command.replace('$stack', 'STACK')}`." in page[alert.title], alert.title
        assert f"({alert.severity.capitalize()}; from " in page[alert.title], alert.title


def test_every_window_of_an_alert_holds_two_scrapes_at_the_longest_interval():
    windows = {window for text in expressions() for window in re.findall(r"\[(\d+)([mhd])[\]:]", text)}
    shortest_s = min(int(number) * {"m": 60, "h": 3600, "d": 86_400}[unit] for number, unit in windows)
    assert shortest_s >= 2 * LONGEST_INTERVAL_S
    check_block(MetricsSettings(interval_s=LONGEST_INTERVAL_S), "metrics")
    with pytest.raises(PlanningError, match="expected 30s to 120s"):
        check_block(MetricsSettings(interval_s=150), "metrics")
