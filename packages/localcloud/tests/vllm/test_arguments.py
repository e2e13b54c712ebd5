import pytest

from localcloud.tests.running.running_server import run_to_end
from localcloud.vllm.arguments import ArgumentError, parse

SEED_TPU = """python3 -m vllm.entrypoints.openai.api_server --model google/gemma-4-E2B-it --tensor-parallel-size 4
--max-model-len 16384 --max_num_batched_tokens 4096 --disable_chunked_mm_input --kv-cache-dtype fp8 --enable-auto-tool-choice
--tool-call-parser gemma4 --reasoning-parser gemma4 --limit-mm-per-prompt {"image":4,"audio":1}"""


def test_the_baseline_command_of_the_tpu_is_understood():
    found = parse(SEED_TPU.split())
    assert (found.model, found.tensor_parallel_size, found.max_model_len) == ("google/gemma-4-E2B-it", 4, 16384)
    assert (found.max_num_batched_tokens, found.kv_cache_dtype) == (4096, "fp8")
    assert found.unused == {"disable_chunked_mm_input": True, "tool_call_parser": "gemma4"}
    assert found.limit_mm_per_prompt == {"image": 4, "audio": 1}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (["--max-model-len=16384"], 16384),
        (["--max_model_len", "16384"], 16384),
        (["--max_model_len=16k"], 16000),
        (["--max-model-len", "16K"], 16384),
        (["--max-model-len", "auto"], -1),
        ([], None),
    ],
)
def test_both_spellings_and_readable_numbers_mean_the_same(flag: list[str], expected: int | None):
    assert parse(["vllm", "serve", "m", *flag]).max_model_len == expected


@pytest.mark.parametrize(
    ("flag", "expected"), [("--enable-prefix-caching", True), ("--no-enable-prefix-caching", False)]
)
def test_booleans_have_a_no_form(flag: str, expected: bool):
    assert parse(["vllm", "serve", "m", flag]).enable_prefix_caching is expected


def test_single_keys_of_a_json_flag_are_taken():
    assert parse(["vllm", "serve", "m", "--limit-mm-per-prompt.image", "2"]).limit_mm_per_prompt == {"image": 2}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-modle-len=1"], "vllm: error: unrecognized arguments: --max-modle-len=1"),
        (["--dtype", "bf16"], "vllm serve: error: argument --dtype: invalid choice: 'bf16'"),
        (["--max-model-len", "long"], "vllm serve: error: argument --max-model-len: 'long' is not a valid integer"),
        (["--tensor-parallel-size", "four"], "invalid int value: 'four'"),
        (["--limit-mm-per-prompt", "{image:1}"], "argument --limit-mm-per-prompt: Value {image:1} cannot be converted"),
        (["--max-model-len"], "argument --max-model-len: expected one argument"),
    ],
)
def test_a_wrong_flag_ends_with_argparses_words_and_code_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        parse(["vllm", "serve", "m", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_another_command_is_refused():
    with pytest.raises(ArgumentError, match="not `vllm bench serve`"):
        parse(["vllm", "bench", "serve"])
    with pytest.raises(ArgumentError, match="max_num_seqs must be greater than or equal to 1"):
        parse(["vllm", "serve", "m", "--max-num-seqs", "0"])
    with pytest.raises(ArgumentError, match="expected NAME=PATH or JSON"):
        parse(["vllm", "serve", "m", "--lora-modules", '{"name": "sql"}'])


def test_the_process_ends_with_the_same_codes():
    assert run_to_end(["vllm", "serve", "m", "--nonsense"])[0] == 2
    code, said = run_to_end(["vllm", "serve", "nobody/no-such-model"])
    assert code == 1
    assert "Invalid repository ID or local directory specified: 'nobody/no-such-model'" in said


def test_a_wrong_variable_of_the_simulator_is_one_sentence():
    code, said = run_to_end(["vllm", "serve", "simulated/tiny"], VLLM_SIM_TTFT_S="soon")
    assert code == 2
    assert said == "localcloud.vllm: VLLM_SIM_TTFT_S is 'soon', expected a number of 0 or more\n"
