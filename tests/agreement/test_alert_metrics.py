"""Alerts and tiles name metrics that exist, bounds that vLLM has, and commands of the runbook."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gemma_serving.components.dashboard import dashboard_json, tiles
from gemma_serving.contracts import alerts
from gemma_serving.contracts.alerts import RUNBOOK, TTFT_BUCKETS_S, AlertValues, alerts_of, every_alert
from gemma_serving.contracts.collector import SCRAPE_INTERVAL_S, collector_config, server_share
from localcloud.services.monitoring_rules import PLATFORM_METRICS, metrics_in
from localcloud.vllm.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
VALUES = AlertValues(
    stack="x", name="gemma-x", ttft_s=2.5, ttft_goal=0.99, idle_s=1800, ready_s=3600, usd_per_hour=1.5, daily_usd=36.0
)
AGENT_METRICS = {"gemma_serving_phase", "gemma_serving_restarts_total", "gemma_serving_deadline_timestamp_seconds"}
CONFIGURATION = json.loads(collector_config(project="p", namespace="n", cluster="c", ports=(8000,)))
(JOB,) = CONFIGURATION["receivers"]["prometheus"]["config"]["scrape_configs"]
KEPT = re.compile(JOB["metric_relabel_configs"][0]["regex"])
SYNTHETIC = {"up"}
"""Series that the collector itself writes."""


@pytest.fixture(scope="module")
def served():
    """The names of series and the bounds of TTFT that the simulated server serves after one request of each kind."""
    metrics = Metrics("m", {"block_size": "16"}, has_drafts=True)
    metrics.count_request("/v1/completions", "POST", 200, 0.1)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        metrics.show(name, lambda: 1)
    metrics.show("num_requests_waiting_by_reason", lambda: 1, "capacity")
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    bucket = re.compile(r'vllm:time_to_first_token_seconds_bucket\{.*le="([^"]+)"')
    return {re.split(r"[{ ]", line)[0] for line in lines}, {found[1] for line in lines if (found := bucket.match(line))}


def expressions():
    yield from (
        VALUES.replace_in(each.expression) for alert in every_alert() for each in alert.conditions if each.expression
    )
    yield from (line.replace("$server", 'namespace="gemma-x"') for tile in tiles() for line in tile.lines.values())


def test_every_metric_of_an_alert_or_a_tile_is_served_and_the_collector_keeps_it(served):
    named = {name for text in expressions() for name in metrics_in(text)}
    assert {"vllm:num_requests_waiting", "http_requests_total", "up", "gemma_serving_phase"} <= named
    scraped = named - PLATFORM_METRICS.keys() - SYNTHETIC
    assert scraped - served[0] - AGENT_METRICS == set()
    assert [name for name in scraped if not KEPT.fullmatch(name)] == []
    assert len(named & PLATFORM_METRICS.keys()) == 3, "Cloud Run's requests and time, and a TPU machine's load"


@pytest.mark.parametrize("bound", TTFT_BUCKETS_S)
def test_every_limit_of_the_first_token_is_a_bound_of_the_histogram(served, bound):
    expression = replace(VALUES, ttft_s=bound).replace_in("$ttft")
    found = re.fullmatch(r'le(=~?)"(.*)"', expression)
    assert any(re.fullmatch(found[2] if found[1] == "=~" else re.escape(found[2]), each) for each in served[1])


@pytest.mark.parametrize(
    ("target", "given", "titles"),
    [
        ("tpu", {"collects": True}, {"Not ready", "Pressure", "Idle"}),
        ("tpu", {"collects": True, "has_budget": True}, {"Not ready", "Pressure", "Idle", "Daily cost"}),
        ("tpu", {"has_budget": True, "has_all": True}, {"Engine fatal"}),
        ("tpu", {}, {"Engine fatal"}),
        ("cloud-run", {}, {"Daily cost", "Does not start or engine fatal"}),
        ("cloud-run", {"has_all": True}, {"Server errors", "Daily cost", "Does not start or engine fatal"}),
    ],
)
def test_a_stack_has_the_main_alerts_or_all_and_only_those_that_can_fire(target, given, titles):
    assert {alert.title for alert in alerts_of(target, **given)} == titles


def test_a_tpu_stack_without_a_budget_has_every_alert_but_that_of_the_daily_cost():
    every = {alert.title for alert in alerts_of("tpu", collects=True, has_budget=True, has_all=True)}
    assert every == {alert.title for alert in every_alert() if "tpu" in alert.targets}
    assert every - {alert.title for alert in alerts_of("tpu", collects=True, has_all=True)} == {"Daily cost"}


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


def test_every_window_of_an_alert_holds_two_scrapes():
    windows = {window for text in expressions() for window in re.findall(r"\[(\d+)([mhd])[\]:]", text)}
    shortest_s = min(int(number) * {"m": 60, "h": 3600, "d": 86_400}[unit] for number, unit in windows)
    assert shortest_s >= 2 * SCRAPE_INTERVAL_S


def test_the_tiles_of_the_dashboard_do_not_overlap_and_fit():
    layout = json.loads(dashboard_json(title="t", namespace="gemma-x", labels={}))["mosaicLayout"]
    cells = [
        (x, y)
        for tile in layout["tiles"]
        for x in range(tile.get("xPos", 0), tile.get("xPos", 0) + tile["width"])
        for y in range(tile.get("yPos", 0), tile.get("yPos", 0) + tile["height"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < layout["columns"]


@pytest.mark.parametrize("hold", ["10m", "30", "-5s", "1.5s", "$idle", "1h30s"])
@pytest.mark.parametrize(("place", "title"), [("$ready", "Not ready"), ("120s", "KV cache nearly full")])
def test_a_time_that_google_rejects_is_refused_when_the_alerts_are_loaded(tmp_path, monkeypatch, hold, place, title):
    text = Path(alerts.__file__).with_name("alerts.toml").read_text()
    (tmp_path / "alerts.toml").write_text(text.replace(f'hold = "{place}"', f'hold = "{hold}"'))
    monkeypatch.setattr(alerts, "__file__", str(tmp_path / "alerts.py"))
    said = f'hold of "{title}" in alerts.toml is "{hold}": it must be seconds, such as "600s", or "$ready".'
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        every_alert.__wrapped__()
