"""What the agent does before it stops a server: models are fetched, running requests end, the end of the run is announced."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.contracts.rollout import RolloutLimits, parse_rollout
from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent import prefetch
from gemma_serving.vm_agent.prefetch import HubFetch, HubModel, hub_models
from gemma_serving.vm_agent.running_server import parse_time
from tests.polling import until
from tests.vm_agent.in_process import Serving, calls, held, written
from tests.vm_agent.machine import CANARY, IMAGE, Machine, document


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
        machine.hub.asked.clear()
        serving.serves("--max-num-seqs=4")
        assert machine.hub.asked == []

    @pytest.mark.parametrize("answers", [True, False])
    def test_of_a_server_with_a_flaw_are_compared_with_the_hub_before_its_new_image_starts(
        self, serving: Serving, machine: Machine, answers: bool
    ):
        """The old server's container could write the cache: the new one got the old one's weights, chat template and config."""
        machine.hub.models["google/gemma-4-E2B-it"] = {"config.json": b'{"good":1}'}
        good = serving.good()
        (blob,) = machine.root.glob("**/models--google--gemma-4-E2B-it/blobs/*")
        blob.write_text('{"evil":1}')
        if not answers:
            machine.hub.meets = lambda _: (503, b"", {})
        other = serving.serves(image=IMAGE.replace("a" * 64, "b" * 64))
        assert good != other
        assert blob.read_text() == ('{"good":1}' if answers else '{"evil":1}')

    def test_are_fetched_with_the_token_before_the_old_server_is_stopped(self, serving: Serving, machine: Machine):
        version = "projects/p/secrets/s/versions/3"
        machine.secrets[version] = CANARY.encode()
        good = serving.good()
        wait = held(machine)
        other = serving.ask(**of_model(serving, "org/new"), secretEnv={"HF_TOKEN": version})
        serving.sees("fetching weights", other, good)
        assert calls(machine, "stop") == []
        wait.set()
        serving.sees("ready", other, other)
        assert {path.rpartition("/")[2] for _, path, token, _ in machine.hub.asked if token == f"Bearer {CANARY}"} == {
            "main",
            "model.safetensors",
        }
        assert CANARY not in (machine.root / "docker.log").read_text()
        assert (machine.root / "huggingface" / "hub" / "models--org--new" / "refs" / "main").exists()

    def test_that_the_hub_refuses_never_stop_the_old_server(self, serving: Serving, machine: Machine):
        good = serving.good()
        refused = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model gated/model is restricted"}
        machine.hub.meets = lambda path: (403, b"", refused)
        bad = serving.ask(**of_model(serving, "gated/model"))
        serving.sees("failed", bad, good)
        assert "Cannot fetch gated/model from the hub: 403 Client Error" in machine.guest()["detail"]
        assert calls(machine, "stop") == []

    def test_are_waited_for_while_the_hub_is_down(self, machine: Machine, waits: list[float]):
        serving = Serving(machine, waiting_delay_s=0.05)
        good = serving.good()
        machine.hub.models["org/new"] = {"model.safetensors": b"weights"}
        machine.hub.meets = lambda path: (503, b"", {})
        other = serving.ask(**of_model(serving, "org/new"))
        serving.sees("waiting for the hub", other, good)
        machine.hub.meets = lambda path: None
        serving.sees("ready", other, other)

    def test_that_never_fit_never_stop_the_old_server(
        self, serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        good = serving.good()
        with_free(monkeypatch, 3)
        machine.hub.models["org/new"] = {"model.safetensors": b"weights"}
        bad = serving.ask(**of_model(serving, "org/new"))
        serving.sees("failed", bad, good)
        words = (
            f"org/new needs 0.0 GiB at {machine.root}/huggingface, but only 0.0 GiB are free. Set tpu.bootDiskSizeGb"
        )
        assert words in machine.guest()["detail"]
        assert calls(machine, "stop") == []

    def test_that_fit_only_without_the_old_one_are_left_to_the_new_server(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ):
        with_free(monkeypatch, 3)
        cache = machine.root / "huggingface"
        old = cache / "hub" / "models--google--gemma-4-E2B-it" / "blobs"
        old.mkdir(parents=True)
        with (old / "weights").open("wb") as file:
            file.truncate(10**9)
        machine.hub.models["org/new"] = {"model.safetensors": b"weights"}
        wanted = parse_document(document(8000, args=["org/new"]))
        assert HubFetch(wanted, dict, lambda _detail: None, lambda: False, cache, is_trial=True).run() is False
        assert [path for _, path, _, span in machine.hub.asked if span] == []


class TestDrain:
    def test_a_server_that_does_not_know_it_is_stopped_in_an_idle_moment(self, serving: Serving, machine: Machine):
        serving.good()
        busy, asked = (machine.root / f"gemma-serving.{name}" for name in ("busy", "asked"))
        busy.write_text("2.0")
        second = serving.ask("--max-num-seqs=4", limits=RolloutLimits(drain_s=600))
        machine.until(asked.exists, "the agent asks whether requests run")
        assert calls(machine, "stop") == []
        assert "pause-began-at" not in machine.guest(), "a server that waits for an idle moment answers"
        busy.write_text("0.0")
        serving.sees("ready", second, second)
        assert [call[1:3] for call in calls(machine, "stop")] == [["-t", "30"]]

    def test_a_flag_of_the_document_is_kept(self, serving: Serving, machine: Machine):
        serving.serves("--shutdown-timeout=5", limits=RolloutLimits(drain_s=40, shutdown_flag=True))
        assert [word for word in calls(machine, "run")[0] if "shutdown" in word] == ["--shutdown-timeout=5"]

    def test_the_way_back_gives_the_good_server_its_own_drain(self, serving: Serving, machine: Machine):
        good = serving.serves(limits=RolloutLimits(drain_s=40, shutdown_flag=True))
        serving.sees("failed", serving.ask("--no-such-flag", limits=RolloutLimits(drain_s=40)), good)
        assert [call[-1] for call in calls(machine, "run")][1:] == ["--no-such-flag", "--shutdown-timeout=40"]


class TestTheEndOfTheRun:
    def test_is_published_and_the_server_drains_and_stops_before_it(self, serving: Serving, machine: Machine):
        good = serving.good()
        far = "2126-01-01T00:00:00.123456789Z"
        serving.agent.run_end.set(far)
        machine.until(lambda: machine.guest().get("ends-at") == far, "the end is published")
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
        until(lambda: machine.guest().get("ends-at") == "2126-01-01T00:00:00Z", "the end is published")

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
