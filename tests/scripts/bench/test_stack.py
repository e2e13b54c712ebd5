"""`gemma bench`: the load tester with a stack, its plan and its credentials."""

import re
from dataclasses import replace

import pytest

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.scripts.bench.__main__ import COMMAND
from gemma_serving.scripts.bench.forecast import PlanForecast
from gemma_serving.scripts.bench.measuring import open_target
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack.access import ServerAccess
from gemma_serving.scripts.stack.connection_errors import endpoint_of
from loadtest.errors import SweepError
from loadtest.settings import SweepSettings
from loadtest.store import read_results, read_run
from loadtest.sweep import run_sweep
from loadtest.tests.test_sweep_runs import SWEEP, Quiet
from tests.scripts.bench.test_forecast import planner
from tests.scripts.sample_outputs import sample_outputs

SMALL = ["--concurrency", "2", "--requests", "4", "--input-tokens", "8", "--output-tokens", "4"]
"""Words of a short measurement."""


def outputs(url):
    return from_json(StackOutputs, sample_outputs(endpoint=url))


def test_a_stack_is_measured_with_its_own_token_price_and_roofline(start_server, tmp_path, monkeypatch):
    private = start_server("--ttft-s", "0.02", "--tpot-s", "0.005", "--token", "canary")
    monkeypatch.setattr("gemma_serving.scripts.bench.measuring.serving_outputs", lambda _stack: outputs(private.url))
    monkeypatch.setattr("gemma_serving.scripts.stack.access.fetch_id_token", lambda _audience: "canary")
    settings = SweepSettings(url="", model=None, out=tmp_path, warm_up=0, workers=1, stack="l4")
    with open_target(settings, None) as (access, ready):
        outcome = run_sweep(ready, SWEEP, access, Quiet())
        planned = replace(ready, out=tmp_path / "planned", forecast=PlanForecast(planner()))
        run_sweep(planned, SWEEP, access, Quiet())
    assert outcome.ending == "done"
    (result,) = read_results(tmp_path)
    assert (ready.forecast is not None, result["forecast"]) == (True, None)  # its settings are not those of the sample
    (forecast,) = [result["forecast"] for result in read_results(tmp_path / "planned")]
    assert set(forecast) == {"output_throughput", "mean_ttft_ms", "mean_tpot_ms"}
    assert all(0 < band["low"] <= band["typical"] <= band["high"] for band in forecast.values())
    assert result["completed"] == 12
    price = 1.42 / 3600 / result["output_throughput"] * 1e6
    assert result["usd_per_million_output_tokens"] == pytest.approx(price, rel=1e-3)
    run = read_run(tmp_path)
    assert run["hosting"] == {"accelerator": "L4", "zone": "us-east4", "image": ready.hosting.image}
    assert (run["url"], run["roofline"]["accelerator"]) == ("stack l4", "L4")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    with (
        pytest.raises(SweepError, match="--point-timeout is 3000"),
        open_target(replace(settings, point_timeout_s=3000), None),
    ):
        pass


def test_without_a_folder_the_results_are_in_one_of_their_own(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(COMMAND, ["--url", server.url, *SMALL, "--warm-up", "0", "--allow-invalid"]) == 0
    (folder,) = (tmp_path / "results" / "127.0.0.1").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ", folder.name)
    assert (folder / "report.html").is_file()
    assert f"bench: writing the results to {folder.relative_to(tmp_path)}\n" in capsys.readouterr().err


def test_the_stacks_adapters_are_named_in_turn(start_server, tmp_path, monkeypatch, capsys):
    served = start_server("--keep-requests", "--adapters", "red,blue")
    monkeypatch.setattr("gemma_serving.scripts.bench.measuring.serving_outputs", lambda _stack: found[0])
    monkeypatch.setattr("gemma_serving.scripts.stack.access.fetch_id_token", lambda _audience: "token")
    words = ["--stack", "l4", "--concurrency", "1", "--requests", "4", "--input-tokens", "8", "--output-tokens", "4"]
    words += ["--warm-up", "0", "--adapters", "all", "--out", str(tmp_path / "out"), "--json"]
    found = [outputs(served.url)]
    assert run_command(COMMAND, words) == 2
    assert "--adapters is all, but stack l4 has no adapters." in capsys.readouterr().err
    found[0] = replace(outputs(served.url), features=ServedFeatures(adapters=("red", "blue")))
    run_command(COMMAND, words)
    assert [item["body"]["model"] for item in served.received()] == ["red", "blue", "red", "blue"]
    assert read_run(tmp_path / "out")["traffic"]["adapters"] == ["red", "blue"]
    assert run_command(COMMAND, ["--url", served.url, *words[2:]]) == 2
    assert "--adapters all requires --stack." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://127.0.0.1:9", "--out", "x", "--accelerator", "L4"], "is not in the planner's catalog"),
        (["report", "x"], "Cannot read"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(COMMAND, words) == 2
    assert message in capsys.readouterr().err


def test_a_tunnel_that_has_ended_is_named_to_the_load_tester():
    endpoint = endpoint_of(ServerAccess(base_url="http://x", auth="tunnel", is_open=lambda: False))
    assert endpoint.not_reached(OSError("reset")) == "the tunnel closed: reset"
    assert endpoint_of(ServerAccess(base_url="http://x", auth="none")).not_reached(OSError("reset")) == ""
