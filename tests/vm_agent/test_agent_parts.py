"""The agent's parts, one at a time, in this process."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gemma_serving.contracts.guest_attributes import reason_of
from gemma_serving.contracts.serving_document import BucketWeights, parse_document
from gemma_serving.vm_agent import containers
from gemma_serving.vm_agent import weights as weights_module
from gemma_serving.vm_agent.base import ServingError, SupersededError
from gemma_serving.vm_agent.cloud import MetadataClient, read_secret
from gemma_serving.vm_agent.containers import pull_problem, remove_other_models
from gemma_serving.vm_agent.guard_file import write_guard
from gemma_serving.vm_agent.publishing import LogFollower, PhasePublisher
from gemma_serving.vm_agent.shipping import LogShipper
from gemma_serving.vm_agent.weights import WeightsCopy
from tests.vm_agent.in_process import Serving, calls
from tests.vm_agent.machine import CANARY, Machine, document, free_port


def copier(target: Path, cancelled: Callable[[], bool] = lambda: False) -> WeightsCopy:
    weights = BucketWeights("gs://models/e2b", str(target))
    return WeightsCopy(MetadataClient(), weights, lambda _: None, cancelled, chunk_bytes=1000)


@pytest.fixture
def staged(machine: Machine) -> Machine:
    """A machine whose bucket has a model."""
    machine.objects["e2b/config.json"] = b"{}"
    machine.objects["e2b/shards/one.safetensors"] = bytes(range(256)) * 20
    machine.objects["e2b/empty"] = b""
    machine.objects["e2bother/not-ours"] = b"x"
    return machine


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_every_user_in_the_container_can_read_the_guard(tmp_path: Path, umask: int):
    """Docker mounts the folder; the image's user is not the agent's."""
    before = os.umask(umask)
    try:
        for _ in range(2):  # again by an agent that starts again
            folder = write_guard(tmp_path / "state" / "guard")
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o755, 0o644)


class TestWeightsFromABucket:
    def test_compiled_programs_beside_weights_without_a_folder_are_no_weights(self, machine: Machine, tmp_path: Path):
        machine.objects["config.json"] = b"{}"
        machine.objects["compile-cache/v6e-4/key/0.tar"] = b"programs"
        weights = BucketWeights("gs://models", str(tmp_path / "m"))
        WeightsCopy(MetadataClient(), weights, lambda _: None, lambda: False).run()
        assert [path.name for path in (tmp_path / "m").rglob("*") if not path.name.startswith(".")] == ["config.json"]

    def test_files_that_left_the_bucket_leave_the_folder_and_strangers_stay(self, staged: Machine, tmp_path: Path):
        copier(tmp_path / "m").run()
        (tmp_path / "m/mine.txt").write_text("kept")
        del staged.objects["e2b/shards/one.safetensors"]
        copier(tmp_path / "m").run()
        assert not (tmp_path / "m/shards/one.safetensors").exists()
        assert (tmp_path / "m/mine.txt").read_text() == "kept"

    def test_a_link_in_the_place_of_a_file_is_not_followed(self, staged: Machine, tmp_path: Path):
        host = tmp_path / "host"
        host.write_text("kept")
        for name in (".config.json.generation", ".config.json.part", "config.json"):
            (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "m" / name).symlink_to(host)
        copier(tmp_path / "m").run()
        assert host.read_text() == "kept"
        assert (tmp_path / "m/config.json").read_bytes() == b"{}"

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"name": "e2b/../../etc/passwd"}, "has a path outside"),
            ({"name": "e2b/a\0b"}, "has a path outside"),
            ({"name": "e2b/a\ud800"}, "has a path outside"),
            ({"size": "-5"}, "cannot be read"),
            ({"size": "x"}, "cannot be read"),
            ({"metadata": "text"}, "cannot be read"),
            ({"generation": None, "size": None}, "cannot be read"),
        ],
    )
    def test_an_object_that_cannot_be_is_refused_in_one_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], said: str
    ):
        item = {"name": "e2b/a", "size": "1", "generation": "7", "md5Hash": "x", **changes}
        monkeypatch.setattr(weights_module, "google", lambda *_: json.dumps({"items": [item]}))
        with pytest.raises(ServingError, match=rf"(Object .*|The list of gs://models/e2b) {said}"):
            copier(tmp_path / "m").run()

    @pytest.mark.parametrize(
        ("has_md5", "sha256", "said"),
        [
            (True, None, ""),
            (False, None, "does not match the MD5"),
            (True, "right", ""),
            (True, "other", "does not match the SHA-256"),
            (True, "", "has neither MD5 nor SHA-256. Only its size was checked"),
        ],
    )
    def test_an_object_is_checked_by_its_md5_or_by_the_sha256_of_its_metadata(  # noqa: PLR0917 - a table
        self, staged: Machine, tmp_path: Path, capsys, has_md5: bool, sha256: str | None, said: str
    ):
        """An object that was joined of parts has no MD5."""
        name = "e2b/shards/one.safetensors"
        if not has_md5:
            staged.wrong_md5.add(name)
        if sha256 is not None:
            staged.composite[name] = (
                sha256 and hashlib.sha256(staged.objects[name] if sha256 == "right" else b"other").hexdigest()
            )
        is_refused = said.startswith("does not")
        if is_refused:
            with pytest.raises(ServingError, match=said):
                copier(tmp_path / "m").run()
        else:
            copier(tmp_path / "m").run()
            assert said in capsys.readouterr().err
        assert (tmp_path / "m/shards/one.safetensors").exists() is not is_refused

    def test_parts_of_a_copy_that_broke_off_leave_before_the_room_is_counted(
        self, staged: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        part = tmp_path / "m/shards/.of-an-older-model.safetensors.part"
        part.parent.mkdir(parents=True)
        part.touch()
        usage = weights_module.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(
            weights_module.shutil, "disk_usage", lambda _: usage._replace(free=0 if part.exists() else 10**9)
        )
        copier(tmp_path / "m").run()
        assert (tmp_path / "m/config.json").exists()

    def test_a_newer_document_stops_the_copy(self, staged: Machine, tmp_path: Path):
        with pytest.raises(SupersededError):
            copier(tmp_path / "m", cancelled=lambda: True).run()

    def test_a_disk_that_is_too_small_is_said_before_the_first_byte(
        self, staged: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        usage = weights_module.shutil.disk_usage(tmp_path)._replace(free=10)
        monkeypatch.setattr(weights_module.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(ServingError, match=r"set tpu\.bootDiskSizeGb"):
            copier(tmp_path / "m").run()
        assert staged.ranges == []


class TestPhasesFromTheLog:
    @pytest.mark.parametrize(
        ("line", "phase"),
        [
            ("INFO 09-01 [gpu_model_runner.py:1] Starting to load model google/gemma-4-E2B-it...", "loading"),
            ("Loading safetensors checkpoint shards:  50% Completed | 1/2", "loading"),
            ("Fetching 4 files:  25%", "fetching weights"),
            ("INFO Time spent downloading weights for google/gemma-4: 12.1 seconds", "fetching weights"),
            ("INFO Precompile backbone with sampling --> num_tokens: 16", "compiling"),
            ("INFO Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%", "compiling"),
            ("INFO torch.compile takes 98.9 s in total", "compiling"),
            ("INFO Initializing a V1 LLM engine with config: compilation_config={...}", "loading"),
            ("INFO non-default args: {'enable_torch.compile': True}", "loading"),
            ("WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs", "loading"),
            ("WARNING [vllm.py:1727] Inductor compilation was disabled by user settings", "loading"),
            ("INFO [compilation.py:317] Enabled custom fusions: norm_quant, act_quant", "loading"),
        ],
    )
    def test_vllms_own_words_give_the_phase(self, line: str, phase: str):
        follower = LogFollower()
        follower.add_line(line)
        assert follower.phase == phase

    def test_compiling_is_not_left_for_loading(self):
        follower = LogFollower()
        follower.add_line("INFO Compiling a graph for dynamic shape")
        follower.add_line("Loading weights took 3.1 seconds")
        assert follower.phase == "compiling"


class TestWhatIsPublished:
    @pytest.mark.parametrize("refused", [("phase", "starting"), ("document-hash", "two")])
    def test_also_not_when_google_refuses_a_write(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, str]
    ):
        publisher, write = PhasePublisher(MetadataClient()), MetadataClient.publish
        publisher.publish("ready", "one")

        def refuse(client: MetadataClient, key: str, value: str) -> None:
            if (key, value) == refused:
                raise OSError("429 Too Many Requests")
            write(client, key, value)

        with monkeypatch.context() as patched:
            patched.setattr(MetadataClient, "publish", refuse)
            publisher.publish("ready", "two")
        publisher.publish("ready", "two")
        ready = [seen for phase, seen in machine.moments() if phase == "ready"]
        assert (ready, machine.moments()[-2]) == (["one", "two"], ("starting", "two"))

    def test_secrets_and_token_shapes_are_removed_and_the_end_is_kept(self, machine: Machine):
        publisher = PhasePublisher(MetadataClient())
        publisher.secrets.add("swordfish")
        publisher.publish(
            "failed", "one", "x" * 5000 + f" swordfish {CANARY} Authorization: Bearer abc.def ya29.abc-def the end"
        )
        detail = machine.guest()["detail"]
        assert len(detail.encode()) <= 2048
        assert detail.endswith("[masked] [masked] Authorization: Bearer [masked] [masked] the end")

    def test_a_private_key_that_the_server_prints_line_by_line_never_reaches_cloud_logging(self, machine: Machine):
        publisher = PhasePublisher(MetadataClient())
        shipper = LogShipper(MetadataClient(), publisher)
        publisher.secrets.add("swordfish")
        for line in ("-----BEGIN PRIVATE KEY-----", "canary+short=", "-----END PRIVATE KEY-----", "a swordfish"):
            shipper.server_line(line)
            shipper.agent_line("agent")
        assert shipper.write()
        assert machine.log_lines("server") == ["[masked]", "[masked]", "[masked]", "a [masked]"]
        assert machine.log_lines("agent") == ["agent"] * 4

    def test_guest_attributes_that_cannot_be_written_do_not_stop_the_agent(self, capsys: pytest.CaptureFixture[str]):
        told: list[str] = []
        publisher = PhasePublisher(MetadataClient(host=f"127.0.0.1:{free_port()}"), tell=told.append)
        for _ in range(3):
            publisher.publish("starting", "one")
        assert "enable-guest-attributes=TRUE" in capsys.readouterr().err
        assert told == ["Document one: starting."], "each phase is reported once"


class TestGoogleApis:
    @pytest.mark.parametrize("payload", [b"", b"two\nlines", b"two\n"])
    def test_a_secret_that_is_no_environment_variable_is_refused_without_its_value(
        self, machine: Machine, payload: bytes
    ):
        machine.secrets["projects/p/secrets/s/versions/1"] = payload
        with pytest.raises(
            ServingError, match=r"^The value of \S+ (is empty|has several lines|ends in a newline)"
        ) as refused:
            read_secret(MetadataClient(), "projects/p/secrets/s/versions/1")
        assert "two" not in str(refused.value)

    def test_only_a_denied_secret_asks_for_a_grant(self, machine: Machine):
        version = "projects/p/secrets/s/versions/1"
        with pytest.raises(ServingError, match=r"Permission denied on resource\. Grant the TPU VM's service account"):
            read_secret(MetadataClient(), version)
        machine.no_secrets.add(version)
        with pytest.raises(ServingError, match=r"not found\.$"):
            read_secret(MetadataClient(), version)


def phases_after(machine: Machine, words: str) -> list[str]:
    """The phases that were published after the first detail with these words, in order."""
    published = list(machine.published)
    details = (index for index, (key, value) in enumerate(published) if key == "detail" and words in value)
    return [value for key, value in published[next(details, len(published)) :] if key == "phase"]


class TestRestarts:
    def test_a_server_that_compiles_for_long_before_it_crashes_is_given_up_too(
        self, serving: Serving, machine: Machine
    ):
        serving.agent.pacing.steady_s = 0.0
        serving.sees("failed", serving.ask("--crash"), "")
        assert len(calls(machine, "run")) == 3, "two restarts"

    def test_a_grant_that_takes_minutes_costs_no_restart(self, serving: Serving, machine: Machine):
        serving.agent.pacing.denied_delay_s = 0.05
        version = "projects/p/secrets/late/versions/1"
        asked = serving.ask(secretEnv={"HF_TOKEN": version})
        machine.until(
            lambda: len(phases_after(machine, "Permission denied")) > 6, "it is tried more often than restarts allow"
        )
        assert "failed" not in phases_after(machine, "Permission denied")
        machine.secrets[version] = b"value"
        serving.sees("ready", asked, asked)

    def test_a_permission_that_is_never_granted_fails_in_the_end(self, serving: Serving, machine: Machine):
        serving.agent.pacing.denied_delay_s, serving.agent.pacing.denied_budget_s = 0.05, 0.2
        serving.sees("failed", serving.ask(secretEnv={"HF_TOKEN": "projects/p/secrets/never/versions/1"}), "")
        assert "roles/secretmanager.secretAccessor" in machine.guest()["detail"]

    @pytest.mark.parametrize(
        ("image", "said", "advised"),
        [
            ("us-docker.pkg.dev/p/repo/a:1", "received unexpected HTTP status: 502 Bad Gateway", True),
            ("us-docker.pkg.dev/p/repo/a:1", "toomanyrequests: You have reached your pull rate limit.", True),
            ("docker.io/a:1", "toomanyrequests: You have reached your pull rate limit.", True),
            ("registry.example/a:1", "toomanyrequests: You have reached your pull rate limit.", False),
            ("us-docker.pkg.dev/p/repo/a:1", "manifest unknown: Failed to fetch", False),
        ],
    )
    def test_a_pull_that_docker_hub_limits_names_the_setting(self, image: str, said: str, advised: bool):
        assert ("set gemma-serving:dockerHub" in pull_problem(image, said)) == advised

    def test_a_server_that_goes_deaf_after_ready_is_restarted(self, serving: Serving, machine: Machine):
        serving.agent.pacing.health_lost_s = 1.0
        asked = serving.good()
        sick = machine.root / "gemma-serving.sick"
        sick.touch()
        lost = "/health stopped responding: status 503"
        machine.until(lambda: phases_after(machine, lost)[:1] == ["loading"], "the loss is published")
        machine.until(
            lambda: machine.guest()["phase"] == "retrying" or len(calls(machine, "run")) >= 2, "it is given up"
        )
        sick.unlink()
        machine.until(lambda: len(calls(machine, "run")) >= 2, "it is started again")
        serving.sees("ready", asked, asked)


def test_models_that_the_document_does_not_name_leave_the_disk(tmp_path: Path):
    names = ("google--gemma-4-E2B-it", "google--gemma-4-31B-it", "org--draft--8")
    for name in names:
        (tmp_path / "hub" / f"models--{name}").mkdir(parents=True)
    text = document(8000, args=["google/gemma-4-E2B-it", '--speculative-config={"model": "org/draft--8"}'])
    remove_other_models(parse_document(text), cache=tmp_path)
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == [f"models--{names[0]}", f"models--{names[2]}"]


HINT = "Run 'docker run --help' for more information"
NO_VLLM = (
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "absent": executable file not found in $PATH: unknown'
)


def test_a_warning_of_docker_is_no_part_of_what_it_answers(
    serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DOCKER_CONFIG", str(machine.root))
    (machine.root / "config.json").write_text("{broken")
    asked = serving.good()
    state = containers.container_state()
    assert state is not None
    assert (state.running, state.text_hash) == (True, asked)


def test_the_reason_of_a_failed_start_is_dockers_message_and_not_its_hint(serving: Serving, machine: Machine):
    told: list[str] = []
    serving.agent.publisher.tell = told.append
    serving.sees("failed", serving.ask(command=["absent"]), "")
    assert reason_of(machine.guest()["detail"]) == f"docker run failed: {NO_VLLM}"
    assert f"failed. docker run failed: {NO_VLLM}" in told[-1]
    assert HINT not in "".join(value for _, value in machine.published)


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("log\nValueError: x.\n", "ValueError: x."),
        (f"log\n{NO_VLLM}\n\n", NO_VLLM),
        ("", ""),
    ],
)
def test_the_reason_is_the_last_line_with_text(detail: str, reason: str):
    assert reason_of(detail) == reason
