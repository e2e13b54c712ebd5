"""What `python -m authors.oracle --part metrics` calls a fault."""

import pytest

from authors.oracle.metric_shapes import compare_shapes, shapes_of
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.speculation import Speculation

TEXT = """\
# HELP http_requests_total Total number of requests.
# TYPE http_requests_total counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 2.0
# TYPE ttft_seconds histogram
ttft_seconds_bucket{engine="0",le="0.5"} 1.0
ttft_seconds_bucket{engine="0",le="+Inf"} 2.0
ttft_seconds_count{engine="0"} 2.0
ttft_seconds_sum{engine="0"} 1.5
# TYPE waiting gauge
waiting{engine="0"} 0.0
"""


def faults_of(simulated: str, real: str = TEXT) -> tuple[str, ...]:
    return compare_shapes(shapes_of(simulated), shapes_of(real)).faults


def test_a_counter_has_the_same_shape_with_and_without_its_suffix_in_the_type_line():
    assert faults_of(TEXT, TEXT.replace("# TYPE http_requests_total", "# TYPE http_requests")) == ()


def test_names_that_only_vllm_has_are_listed_and_no_fault():
    real = TEXT + '# TYPE sleep_state gauge\nsleep_state{engine="0"} 0.0\n'
    compared = compare_shapes(shapes_of(TEXT), shapes_of(real))
    assert compared.missing == ("sleep_state",)
    assert compared.compared == ("http_requests", "ttft_seconds", "waiting")
    assert compared.faults == ()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("# TYPE waiting gauge", "# TYPE queue gauge"), "vLLM has no queue"),
        (("# TYPE waiting gauge", "# TYPE waiting counter"), "waiting is a counter in the simulated server"),
        (('le="0.5"', 'le="0.6"'), "ttft_seconds has other buckets"),
        ((',method="POST"', ""), "http_requests has the labels handler, status in the simulated server"),
    ],
)
def test_another_name_type_bucket_or_label_is_a_fault(change, fault):
    faults = faults_of(TEXT.replace(*change))
    assert any(fault in each for each in faults), faults


def test_only_the_labels_of_the_configuration_that_are_read_must_be_in_vllm():
    labels = 'block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",num_gpu_blocks="9",swap_space="4"'
    ours = f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
    assert faults_of(ours, ours.replace("swap_space", "hash_block_size")) == ()
    assert faults_of(ours, ours.replace("num_gpu_blocks", "blocks")) == (
        "metrics: vllm:cache_config_info has no label num_gpu_blocks in vLLM",
    )


def test_every_metric_of_the_simulated_server_has_a_type():
    text = Metrics(
        "m", {}, max_model_len=500, speculation=Speculation({"method": "ngram", "num_speculative_tokens": 2})
    ).render(running=0, waiting=0, kv_usage=0)
    shapes = shapes_of(text)
    assert {shape.kind for shape in shapes.values()} == {"counter", "gauge", "histogram"}
    assert {name for name, shape in shapes.items() if not shape.labels} <= {
        "process_start_time_seconds",
        "http_requests",
        "http_request_duration_seconds",
        "vllm:cache_config_info",
    }
    assert shapes["vllm:num_requests_waiting_by_reason"].labels == {"engine", "model_name", "reason"}
