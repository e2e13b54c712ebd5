"""What the server is told to load, by where the weights are."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.memory.host_memory import parts_bytes
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.bucket_weights import staged_weights
from gemma_serving.stacks.loading import from_values
from gemma_serving.stacks.planned import to_question
from tests.stacks.conftest import values_of
from tests.stacks.failed_start import context_of

HASH = "0123456789abcdef" * 4
OWN, ENDING = f"sha256:{HASH}", "-0123456789abcdef"


@pytest.mark.parametrize(
    ("weights", "bucket", "load_format", "loaded"),
    [
        ("hub", {}, None, "google/gemma-4-E2B-it"),
        ("hub", {}, "runai_streamer", "google/gemma-4-E2B-it"),
        ("bucket", {}, None, "/mnt/models/gemma-4-E2B-it"),
        ("bucket", {}, "runai_streamer", "gs://my-project-gemma-x-models/gemma-4-E2B-it"),
        ("bucket", {"manifest": OWN}, None, "/mnt/models/gemma-4-E2B-it"),  # a machine's own copy
        ("bucket", {"manifest": OWN}, "runai_streamer", f"gs://my-project-gemma-x-models/gemma-4-E2B-it{ENDING}"),
        ("bucket", {"existing": "theirs", "prefix": "/"}, None, "/mnt/models"),
        ("bucket", {"existing": "theirs", "prefix": ""}, "runai_streamer", "gs://theirs"),
        ("bucket", {"existing": "theirs", "prefix": "e2b"}, "runai_streamer", "gs://theirs/e2b"),
    ],
)
def test_a_tpu_server_loads_from(weights, bucket, load_format, loaded):
    values = values_of("tpu-v6e1")
    values["vllm"] = {**values.get("vllm", {}), **({"loadFormat": load_format} if load_format else {})}
    settings = from_values({**values, "weights": weights, "bucket": bucket}, project="my-project", origin="x")
    context = context_of(settings)
    assert context.weights_to_load == loaded


@pytest.mark.parametrize(
    ("mode", "loaded"),
    [
        ("fuse", f"/mnt/models/NAME{ENDING}"),
        ("streamer", f"gs://my-project-gemma-x-models/NAME{ENDING}"),
        ("memory", "/mnt/weights/NAME"),
    ],
)
def test_a_service_loads_from_the_folder_of_its_manifest(mode, loaded):
    """A folder of a revision never changes; a copy in memory is a container's own."""
    values = values_of("l4-qat")
    values["cloudRun"] = {**values["cloudRun"], "mount": {"mode": mode}}
    if mode == "streamer":
        values["vllm"] = {**values.get("vllm", {}), "loadFormat": "runai_streamer"}
    settings = from_values({**values, "bucket": {"manifest": OWN}}, project="my-project", origin="x")
    context = context_of(settings)
    name = settings.model.rpartition("/")[2]
    assert (context.weights_to_load, settings.bucket.manifest_hash) == (loaded.replace("NAME", name), HASH)
    assert context.weights_uri.endswith(f"{name}{ENDING}")


ADAPTER, DRAFTER = "org/sql", "google/gemma-4-E2B-it-assistant"
PARTS = {ADAPTER: OWN, DRAFTER: OWN}
USES = {
    "lora": {"adapters": {"sql": ADAPTER}},
    "speculative": {"method": "draft-model", "drafter": DRAFTER, "revision": "a" * 40},
}


def with_parts(stack, parts, **changes):
    values = values_of(stack)
    given = {**values, "weights": "bucket", "bucket": {"manifest": OWN, "parts": parts}, **changes}
    given["vllm"] = {**values.get("vllm", {}), **USES, **changes.get("vllm", {})}
    settings = from_values(given, project="my-project", origin="x")
    return context_of(settings)


each_way = pytest.mark.parametrize(
    ("stack", "mode", "root", "copied"),
    [
        ("l4-12b-qat", "fuse", "/mnt/models", False),
        ("l4-12b-qat", "memory", "/mnt/weights", True),
        ("l4-12b-qat", "streamer", "/mnt/weights", True),
        ("tpu-v6e1", None, "/mnt/models", True),
    ],
)


@each_way
def test_staged_parts_are_local_folders_that_need_no_hub(stack, mode, root, copied):
    changes = {} if mode is None else {"cloudRun": {**values_of(stack)["cloudRun"], "mount": {"mode": mode}}}
    context = with_parts(stack, PARTS, **changes)
    assert context.vllm.lora_adapters == {"sql": f"{root}/sql{ENDING}"}
    assert context.vllm.speculative_config == {
        "model": f"{root}/gemma-4-E2B-it-assistant{ENDING}",
        "num_speculative_tokens": 3,
    }
    assert not context.needs_hub
    bucket = "gs://my-project-gemma-x-models"
    folders = {(f"{bucket}/{name}{ENDING}", f"{root}/{name}{ENDING}") for name in ("sql", "gemma-4-E2B-it-assistant")}
    assert {(one.uri, one.path) for one in context.part_copies} == (folders if copied else set())


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A chat template of the project, in the settings as ./chat/tools.jinja."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "tools.jinja").write_text("{{ messages }}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chat" / "tools.jinja"


@each_way
def test_a_template_of_the_project_is_served_from_a_folder_that_its_content_names(template, stack, mode, root, copied):
    changes = {} if mode is None else {"cloudRun": {**values_of(stack)["cloudRun"], "mount": {"mode": mode}}}
    vllm = {"lora": None, "speculative": None, "thinking": {"template": "./chat/tools.jinja"}}
    before = with_parts(stack, {}, vllm=vllm, **changes)
    [part] = before.parts
    first = before.vllm.chat_template
    assert first == f"{root}/{part.folder}/tools.jinja"
    assert not before.needs_hub
    assert [one.path for one in before.part_copies] == ([f"{root}/{part.folder}"] if copied else [])
    check = staged_weights(before.settings, before.names.stack)[-1]
    assert (check.prefix, check.manifest) == (part.folder, part.digest)
    template.write_text("{{ messages | tojson }}")
    after = with_parts(stack, {}, vllm=vllm, **changes)
    assert after.vllm.chat_template != first, "an edited template must be staged again"
    template.unlink()
    [blocked] = [one for one in plan(to_question(after.settings)).stopping if one.id == "ARG02"]
    assert "./chat/tools.jinja) is not a file of vLLM 0." in blocked.message
    assert "image, nor a file of the project with weights: bucket. vLLM will exit at startup." in blocked.message


def test_each_staged_part_is_checked_before_the_service_is_made():
    context = with_parts("l4-12b-qat", PARTS)
    checks = staged_weights(context.settings, context.names.stack)
    assert [(one.prefix, one.manifest) for one in checks] == [
        (f"gemma-4-12B-it-qat-w4a16-ct{ENDING}", HASH),
        (f"gemma-4-E2B-it-assistant{ENDING}", HASH),
        (f"sql{ENDING}", HASH),
    ]


def test_parts_take_time_memory_and_disk():
    alone, both = (
        examine(to_question(with_parts("tpu-v6e1", PARTS, vllm=vllm).settings))
        for vllm in ({"lora": None, "speculative": None}, {})
    )
    size_gib = parts_bytes(both.resolved) / 2**30
    assert 0.1 < size_gib < 1
    assert both.startup.load_s > alone.startup.load_s
    assert both.memory.load_peak_host_gib == pytest.approx(alone.memory.load_peak_host_gib + size_gib, rel=0.01)
