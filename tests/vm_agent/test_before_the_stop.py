"""What the agent does before it stops a server: models are fetched, running requests end, the end of the run is announced."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contracts.rollout import RolloutLimits, parse_rollout
from contracts.serving_document import parse_document
from tests.vm_agent.docker import RUN_FAULT
from tests.vm_agent.in_process import Serving, calls, written
from tests.vm_agent.machine import CANARY, IMAGE, Machine, document, eventually
from vm_agent import prefetch
from vm_agent.base import SupersededError
from vm_agent.metadata_guard import MetadataGuard
from vm_agent.prefetch import HubFetch, HubModel, hub_models
from vm_agent.running_server import parse_time

HF = """
import os, sys, time
from pathlib import Path
root = Path({root!r})
with (root / "hf.log").open("a") as log: print(*sys.argv[1:], len(os.environ.get("HF_TOKEN", "")), file=log)
if (root / "hf.wait").exists() and "--dry-run" not in sys.argv:
    (root / "hf.waits").touch()
    while (root / "hf.wait").exists(): time.sleep(0.01)
if "gated/model" in sys.argv: sys.exit("403 Client Error: Access to model gated/model is restricted")
print("Will download 5 files (out of 9) totalling 12.5G." if "--dry-run" in sys.argv else "Fetching 5 files: 100%")
"""


@pytest.fixture(autouse=True)
def hf(tmp_path: Path):
    (tmp_path / "hf.py").write_text(HF.format(root=str(tmp_path)))


def fetched(machine: Machine) -> list[str]:
    """The calls of `hf`, in order."""
    log = machine.root / "hf.log"
    return log.read_text().splitlines() if log.exists() else []


def of_model(serving: Serving, name: str) -> dict[str, list[str]]:
    return {"args": [name, f"--port={serving.port}"]}


def with_free(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    usage = prefetch.shutil.disk_usage("/")._replace(free=int(free))
    monkeypatch.setattr(prefetch.shutil, "disk_usage", lambda _path: usage)


class TestModels:
    @pytest.mark.parametrize(
        ("args", "found"),
        [
            (["google/gemma-4-E2B-it", "--port=1"], [HubModel("google/gemma-4-E2B-it")]),
            (["google/gemma-4-E2B-it", "--revision", "abc"], [HubModel("google/gemma-4-E2B-it", "abc")]),
            (["--model=a/b", "--revision=c"], [HubModel("a/b", "c")]),
            (["/mnt/models/x"], []),
            (["gs://bucket/x"], []),
            (["a/b", '--speculative-config={"model": "d/e", "method": "mtp"}'], [HubModel("a/b"), HubModel("d/e")]),
            (["a/b", "--speculative_config", '{"method": "ngram"}'], [HubModel("a/b")]),
            (["a/b", "--speculative-config={"], [HubModel("a/b")]),
        ],
    )
    def test_of_a_command_line_are_known(self, args: list[str], found: list[HubModel]):
        assert list(hub_models(parse_document(document(8000, args=args)))) == found

    def test_that_the_old_document_has_are_not_fetched(self, serving: Serving, machine: Machine):
        serving.good()
        second = serving.ask("--max-num-seqs=4")
        serving.sees("ready", second, second)
        assert fetched(machine) == []

    def test_are_fetched_with_the_token_before_the_old_server_is_stopped(
        self, serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        with_free(monkeypatch, 13e9)
        version = "projects/p/secrets/s/versions/3"
        machine.secrets[version] = CANARY.encode()
        good = serving.good()
        (machine.root / "hf.wait").touch()
        other = serving.ask(**of_model(serving, "google/gemma-4-E4B-it"), secretEnv={"HF_TOKEN": version})
        eventually((machine.root / "hf.waits").exists, "the download has begun")
        serving.sees("fetching weights", other, good)
        assert calls(machine, "stop") == []
        (machine.root / "hf.wait").unlink()
        serving.sees("ready", other, other)
        words = f"download google/gemma-4-E4B-it --exclude=original/* {len(CANARY)}"
        assert fetched(machine) == [words.replace("* ", "* --dry-run "), words]
        assert CANARY not in (machine.root / "docker.log").read_text()

    def test_are_fetched_in_a_confined_container_without_the_machines_token(
        self, serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        guarded = "--cgroup-parent=gemmaserving.slice"
        monkeypatch.setattr(MetadataGuard, "fetch_options", lambda _guard: ((guarded,), ""))
        serving.good()
        other = serving.ask(**of_model(serving, "google/gemma-4-E4B-it"))
        serving.sees("ready", other, other)
        fetches = [call for call in machine.docker_calls() if "--name=gemma-serving-fetch" in call]
        assert len(fetches) == 2
        wanted = {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp", guarded}
        for call in fetches:
            assert wanted <= set(call)
            assert [word for word in call if word.startswith("--volume")] == [
                "--volume=/mnt/huggingface:/mnt/huggingface"
            ]

    def test_that_the_hub_refuses_never_stop_the_old_server(self, serving: Serving, machine: Machine):
        good = serving.good()
        bad = serving.ask(**of_model(serving, "gated/model"))
        serving.sees("failed", bad, good)
        assert "Cannot fetch gated/model from the hub: 403 Client Error" in machine.guest()["detail"]
        assert calls(machine, "stop") == []

    def test_that_never_fit_never_stop_the_old_server(
        self, serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        with_free(monkeypatch, 1e9)
        good = serving.good()
        bad = serving.ask(**of_model(serving, "google/gemma-4-E4B-it"))
        serving.sees("failed", bad, good)
        words = "needs 11.6 GiB at /mnt/huggingface, but only 0.9 GiB are free. Set tpu.bootDiskSizeGb"
        assert words in machine.guest()["detail"]
        assert calls(machine, "stop") == []

    def test_that_fit_only_without_the_old_one_are_left_to_the_new_server(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with_free(monkeypatch, 12.4e9)
        old = tmp_path / "cache" / "hub" / "models--google--gemma-4-E2B-it" / "blobs"
        old.mkdir(parents=True)
        with (old / "weights").open("wb") as file:
            file.truncate(10**9)
        (machine.root / f"image-{IMAGE.replace('/', '_')}").touch()
        wanted = parse_document(document(8000, args=["google/gemma-4-E4B-it"]))
        fetch = HubFetch(wanted, {}, lambda _detail: None, lambda: False, tmp_path / "cache")
        assert fetch.run(parse_document(document(8000))) is False
        assert [line for line in fetched(machine) if "--dry-run" not in line] == []

    def test_are_left_to_the_server_if_the_image_has_no_hf(self, serving: Serving, machine: Machine):
        serving.good()
        (machine.root / "hf.py").unlink()
        other = serving.ask(**of_model(serving, "google/gemma-4-E4B-it"))
        serving.sees("ready", other, other)

    def test_a_mount_that_docker_cannot_make_is_not_taken_for_an_image_without_hf(
        self, serving: Serving, machine: Machine
    ):
        """Docker's exit code is 127 for both."""
        good = serving.good()
        said = "Error response from daemon: error while creating mount source path '/mnt/x': mkdir /mnt/x: no such file or directory"
        (machine.root / RUN_FAULT).write_text(said)
        bad = serving.ask(**of_model(serving, "google/gemma-4-E4B-it"))
        serving.sees("failed", bad, good)
        assert machine.guest()["detail"].endswith(f"Cannot fetch google/gemma-4-E4B-it from the hub: docker: {said}")
        assert calls(machine, "stop") == []

    def test_stop_being_fetched_when_a_newer_document_arrives(self, machine: Machine):
        (machine.root / f"image-{IMAGE.replace('/', '_')}").touch()
        (machine.root / "hf.wait").touch()
        begun = (machine.root / "hf.waits").exists
        fetch = HubFetch(parse_document(document(8000)), {}, lambda _detail: None, begun)
        with pytest.raises(SupersededError):
            fetch.run(None)
        assert ["rm", "-f", "gemma-serving-fetch"] in machine.docker_calls()[-1:]
        (machine.root / "hf.wait").unlink()

    def test_of_a_bucket_or_of_a_cache_of_the_document_are_not_fetched(self, machine: Machine):
        changes: tuple[Mapping[str, object], ...] = (
            {"weights": {"mode": "bucket", "uri": "gs://bucket/p", "path": "/mnt/m"}},
            {"env": {"HF_HOME": "/dev/shm/hf"}},
        )
        for change in changes:
            wanted = parse_document(document(8000, **change))
            assert HubFetch(wanted, {}, lambda _detail: None, lambda: False).run(None)
        assert fetched(machine) == []


class TestDrain:
    def test_a_server_that_does_not_know_it_is_stopped_in_an_idle_moment(self, serving: Serving, machine: Machine):
        serving.good()
        busy, asked = (machine.root / f"gemma-serving.exit.{name}" for name in ("busy", "asked"))
        busy.write_text("2.0")
        second = serving.ask("--max-num-seqs=4", limits=RolloutLimits(drain_s=600))
        eventually(asked.exists, "the agent asks whether requests run")
        assert calls(machine, "stop") == []
        assert "pause-began-at" not in machine.guest(), "a server that waits for an idle moment answers"
        busy.write_text("0.0")
        serving.sees("ready", second, second)
        assert [call[1:3] for call in calls(machine, "stop")] == [["-t", "30"]]

    def test_a_flag_of_the_document_is_kept(self, serving: Serving, machine: Machine):
        asked = serving.ask("--shutdown-timeout=5", limits=RolloutLimits(drain_s=40, shutdown_flag=True))
        serving.sees("ready", asked, asked)
        assert [word for word in calls(machine, "run")[0] if "shutdown" in word] == ["--shutdown-timeout=5"]

    def test_the_way_back_gives_the_good_server_its_own_drain(self, serving: Serving, machine: Machine):
        good = serving.ask(limits=RolloutLimits(drain_s=40, shutdown_flag=True))
        serving.sees("ready", good, good)
        serving.sees("failed", serving.ask("--no-such-flag", limits=RolloutLimits(drain_s=40)), good)
        assert [call[-1] for call in calls(machine, "run")][1:] == ["--no-such-flag", "--shutdown-timeout=40"]


class TestTheEndOfTheRun:
    def test_is_published_and_the_server_drains_and_stops_before_it(self, serving: Serving, machine: Machine):
        good = serving.good()
        far = "2126-01-01T00:00:00.123456789Z"
        serving.agent.run_end.set(far)
        eventually(lambda: machine.guest().get("ends-at") == far, "the end is published")
        serving.sees("ready", good, good)
        near = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
        serving.agent.run_end.set(near)
        serving.sees("ending", good, "")
        assert len(calls(machine, "stop")) == 1
        other = serving.ask("--max-num-seqs=4")
        serving.sees("ending", other, "")
        assert len(calls(machine, "run")) == 1, "no server is started that Google would delete at once"
        serving.agent.run_end.set(None)

    def test_ends_a_change_that_is_prepared_and_the_old_server(self, serving: Serving, machine: Machine):
        good = serving.good()
        (machine.root / "hang-pull").touch()
        other = serving.ask(image=IMAGE.replace("a" * 64, "b" * 64))
        serving.sees("pulling image", other, good)
        serving.agent.run_end.set((datetime.now(UTC) + timedelta(seconds=30)).isoformat())
        serving.sees("ending", other, "")
        assert len(calls(machine, "stop")) == 1
        serving.agent.run_end.set(None)

    def test_reaches_the_machine_in_its_metadata(self, machine: Machine):
        machine.attributes["gemma-serving-ends-at"] = "2126-01-01T00:00:00Z"
        machine.boot()
        eventually(lambda: machine.guest().get("ends-at") == "2126-01-01T00:00:00Z", "the end is published")

    def test_that_is_no_time_is_ignored(self, serving: Serving, machine: Machine):
        serving.agent.run_end.set("soon")
        good = serving.good()
        assert machine.guest()["serving-hash"] == good
        assert written(machine, "ends-at") == []

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("1970-01-01T00:01:00Z", 60.0),
            ("1970-01-01T00:01:00.123456789Z", 60.0),
            ("1970-01-01T01:01:00+01:00", 60.0),
        ],
    )
    def test_is_read_as_google_writes_it(self, text: str, seconds: float):
        assert parse_time(text) == pytest.approx(seconds, abs=1e-6)


class TestLimits:
    def test_of_an_older_or_newer_writer_are_read(self):
        assert parse_rollout(None) == RolloutLimits()
        assert parse_rollout('{"drainS": 5, "later": {}}') == RolloutLimits(drain_s=5)

    @pytest.mark.parametrize("text", ["x", '{"readyTimeoutS": "1h"}'])
    def test_that_cannot_be_read_are_refused_and_the_agent_takes_the_defaults_and_says_so_once(
        self, serving: Serving, machine: Machine, text: str, capsys: pytest.CaptureFixture[str]
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - the words are JSON's or ours
            parse_rollout(text)
        serving.latest.set_limits(text)
        assert [serving.latest.limits() for _ in range(3)] == [RolloutLimits()] * 3
        assert capsys.readouterr().err.count("are ignored") == 1
