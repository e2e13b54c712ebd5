"""Results of `vllm bench serve`, read for `compare`."""

import json
from dataclasses import replace

import pytest

from loadtest.compare import compare_folders, results_of
from loadtest.errors import SweepError
from loadtest.foreign import read_foreign
from loadtest.tests.test_sweep_runs import bench
from loadtest.traffic.points import Sweep
from loadtest.traffic.spec import Traffic

SWEEP = Sweep(
    concurrency=(2,), request_rate=(), input_tokens=(40,), output_tokens=(6,), requests=12, duration_s=None, seed=1
)
# The keys and their order as `vllm bench serve --save-result` writes them (vllm-project/vllm, vllm/benchmarks/serve.py: "Save config
# and results to json" and the result of `benchmark()`), with invented figures.
VLLM = {
    "date": "20261120-101500", "endpoint_type": "openai-chat", "backend": "openai-chat", "label": None, "model_id": "timed",
    "tokenizer_id": "timed", "num_prompts": 12, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2,
    "duration": 0.5, "completed": 12, "failed": 0, "total_input_tokens": 432, "total_output_tokens": 72, "request_throughput": 24.0,
    "request_goodput": None, "output_throughput": 144.0, "total_token_throughput": 1008.0, "max_output_tokens_per_s": 150.0,
    "max_concurrent_requests": 2, "mean_ttft_ms": 21.0, "median_ttft_ms": 20.5, "std_ttft_ms": 1.0, "p99_ttft_ms": 24.0,
    "mean_tpot_ms": 5.1, "median_tpot_ms": 5.0, "std_tpot_ms": 0.1, "p99_tpot_ms": 5.4, "mean_itl_ms": 5.1, "median_itl_ms": 5.0,
    "std_itl_ms": 0.1, "p99_itl_ms": 5.4,
}  # fmt: skip
DETAILS = {
    "input_lens": [36] * 12,
    "output_lens": [6] * 12,
    "ttfts": [0.02] * 12,
    "itls": [[0.005] * 5] * 12,
    "errors": [""] * 12,
}


@pytest.fixture(scope="module")
def swept(server, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept")
    bench(server.url, out, SWEEP)
    stored = out / "results.jsonl"
    # Whether this machine is idle enough for a valid point is not what is tested here.
    lines = [json.dumps(json.loads(line) | {"valid": True}) for line in stored.read_text().splitlines()]
    stored.write_text("".join(f"{line}\n" for line in lines))
    return out


def test_a_result_of_vllm_is_compared_with_the_same_point(swept, tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(VLLM | DETAILS))
    comparison = compare_folders(path, swept, threshold=0.05, confidence=0.95)
    # 36 input tokens without the chat template's four: the same point.
    assert {change.point for change in comparison.changes} == {"2 users, 40 in, 6 out"}
    before = {change.metric: change.before for change in comparison.changes}
    assert before == pytest.approx({"output throughput": 144.0, "median TTFT": 20.5, "mean TPOT": 5.1})
    assert comparison.differences == ()
    (result,) = read_foreign(path)
    assert result["e2els"] == pytest.approx([0.045] * 12)


def test_without_details_the_comparison_cannot_tell(swept, tmp_path):
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM | {"median_ttft_ms": 1.0}))
    comparison = compare_folders(tmp_path, swept, threshold=0.05, confidence=0.95)
    assert {change.verdict for change in comparison.changes} <= {"cannot tell"}


@pytest.mark.parametrize("change", [{"max_concurrency": None, "request_rate": 3.5}, {"max_concurrency": 8}])
def test_the_load_of_a_vllm_result_is_a_rate_or_users(tmp_path, change):
    (tmp_path / "v.json").write_text(json.dumps(VLLM | change))
    (result,) = read_foreign(tmp_path)
    wanted = ("open", 3.5) if "request_rate" in change else ("closed", 8.0)
    assert (result["point"]["mode"], result["point"]["level"]) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "as JSON"),
        ('{"a": 1}', "is not a result of vllm bench serve"),
    ],
)
def test_a_file_of_an_unknown_form_is_refused(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SweepError, match=why):
        results_of(tmp_path / "x.json")


def test_loads_of_different_kinds_are_not_the_same_point(swept, tmp_path, server):
    bench(server.url, tmp_path, replace(SWEEP, traffic=Traffic(prefix_share=0.5)))
    comparison = compare_folders(swept, tmp_path, threshold=0.05, confidence=0.95)
    assert comparison.compared_nothing
    assert comparison.missing == ("2 users, 40 in, 6 out",)
