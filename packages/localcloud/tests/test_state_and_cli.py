"""State folders survive and are locked; the command line passes on exit codes and signals and refuses in one sentence."""

import fcntl
import json
import netrc
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
import requests

from localcloud.cli import main
from localcloud.environment import LOGINS
from localcloud.tests import idle_cloud
from localcloud.world.scenario import Images, OperationDurations, Scenario
from localcloud.world.state import StateError, StateLock, description

ROOT = Path(__file__).resolve().parents[2]  # where `python -m localcloud` is found
P = "/projects/local-project"
SERVICES, SERVICE = f"/run/v2{P}/locations/us-east4/services", {"template": {"containers": [{"image": "docker.io/x"}]}}
IMAGES = Images(existing=("docker.io/x",))
INSTANT = Scenario(operations=OperationDurations(instant=True), images=IMAGES)
LIMIT_S = 60
PROGRAMS = str(Path(os.path.abspath(sys.executable)).parent)  # noqa: PTH100 - the environment's, though its python is a link

REAL = {
    "Google": "GOOGLE_CREDENTIALS GOOGLE_OAUTH_ACCESS_TOKEN GOOGLE_APPLICATION_CREDENTIALS GOOGLE_GHA_CREDS_PATH GCLOUD_KEYFILE_JSON "
    "CLOUDSDK_AUTH_ACCESS_TOKEN CLOUDSDK_AUTH_ACCESS_TOKEN_FILE CLOUDSDK_CORE_ACCOUNT CLOUDSDK_CONFIG CLOUDSDK_PROXY_PASSWORD",
    "Pulumi": "PULUMI_ACCESS_TOKEN PULUMI_CONFIG_PASSPHRASE PULUMI_CONFIG_PASSPHRASE_FILE PULUMI_CREDENTIALS_PATH",
    "forges": "GH_TOKEN GITHUB_TOKEN GITHUB_PAT ACTIONS_ID_TOKEN_REQUEST_URL ACTIONS_RUNTIME_TOKEN GITLAB_TOKEN CI_JOB_TOKEN SSH_AUTH_SOCK",
    "registries": "DOCKER_AUTH_CONFIG DOCKER_CONFIG REGISTRY_AUTH_FILE NPM_TOKEN npm_config__auth TWINE_PASSWORD UV_INDEX_MINE_PASSWORD NETRC "
    "HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN",
    "others": "VLLM_API_KEY OPENAI_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID ARM_CLIENT_SECRET AZURE_CLIENT_SECRET KUBECONFIG",
}
"""Variables with which a command could act as its user elsewhere."""


def identity(cloud):
    return {"Authorization": f"Bearer {cloud.token}"}


def call(cloud, method, path, body=None, **query):
    answer = requests.request(
        method, cloud.base_url + path, json=body, params=query, headers=identity(cloud), timeout=60
    )
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else {}


@dataclass
class CommandLine:
    """The command line in this process. Only tests of signals, kills or shells use a separate process."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments):
        self.capture.readouterr()
        try:
            code = main(arguments)
        except SystemExit as refused:
            code = refused.code
        return subprocess.CompletedProcess(arguments, code, *self.capture.readouterr())


@pytest.fixture
def localcloud(capfd, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "PULUMI_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    return CommandLine(capfd)


class TestSurvival:
    def test_everything_is_there_again_after_a_restart(self, tmp_path):
        node = {
            "parent": "projects/local-project/locations/us-east5-a",
            "nodeId": "n",
            "node": {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"},
        }
        with idle_cloud.start(state=tmp_path, scenario=INSTANT) as cloud:
            call(cloud, "POST", f"/secretmanager/v1{P}/secrets", {"replication": {"automatic": {}}}, secretId="kept")
            call(cloud, "POST", f"/secretmanager/v1{P}/secrets/kept:addVersion", {"payload": {"data": "eA=="}})
            call(cloud, "POST", "/storage/storage/v1/b", {"name": "kept-bucket"}, project="local-project")
            answer = requests.post(
                f"{cloud.base_url}/upload/storage/v1/b/kept-bucket/o",
                params={"uploadType": "media", "name": "a"},
                data=b"bytes",
                headers=identity(cloud),
                timeout=60,
            )
            answer.raise_for_status()
            call(cloud, "POST", SERVICES, SERVICE, serviceId="kept")
            queue = f"/tpu/v2alpha1{P}/locations/us-east5-a/queuedResources"
            call(cloud, "POST", queue, {"tpu": {"nodeSpec": [node]}}, queuedResourceId="kept")
            service = call(cloud, "GET", f"{SERVICES}/kept")
            token = cloud.cloud.tokens.issue_access_token("a@example.com")
            call(cloud, "POST", "/admin/advance", {"seconds": 1000})
            first_url, key = cloud.base_url, cloud.credentials.read_text()
        with idle_cloud.start(state=tmp_path, scenario=INSTANT) as cloud:
            assert cloud.base_url == first_url
            assert cloud.credentials.read_text() == key
            assert cloud.cloud.tokens.access_token_email(token) == "a@example.com"
            assert (
                call(cloud, "GET", f"/secretmanager/v1{P}/secrets/kept/versions/latest:access")["payload"]["data"]
                == "eA=="
            )
            content = requests.get(
                f"{cloud.base_url}/storage/storage/v1/b/kept-bucket/o/a",
                params={"alt": "media"},
                headers=identity(cloud),
                timeout=60,
            )
            assert content.content == b"bytes"
            again = call(cloud, "GET", f"{SERVICES}/kept")
            assert (again["uri"], again["uid"]) == (service["uri"], service["uid"])
            assert call(cloud, "GET", "/admin/clock")["simulatedS"] >= 1000
            assert call(cloud, "GET", f"/tpu/v2alpha1{P}/locations/us-east5-a/nodes/n")["state"] == "READY"
            end = time.monotonic() + 60
            while time.monotonic() < end and not (
                cloud.cloud.runtimes.machines.machines and cloud.cloud.runtimes.revisions.running
            ):
                time.sleep(0.01)  # the restart after an opening has no operation and comes in another thread
            assert list(cloud.cloud.runtimes.machines.machines) == [
                "projects/local-project/locations/us-east5-a/nodes/n"
            ]
            assert cloud.cloud.runtimes.revisions.running == {again["latestReadyRevision"]}

    def test_a_deployment_that_was_under_way_goes_on(self, tmp_path):
        slow = Scenario(operations=OperationDurations(run_s=10_000), images=IMAGES)
        with idle_cloud.start(state=tmp_path, scenario=slow) as cloud:
            operation = call(cloud, "POST", SERVICES, SERVICE, serviceId="slow")
            assert "done" not in call(cloud, "GET", f"/run/v2/{operation['name']}")
        with idle_cloud.start(state=tmp_path, scenario=INSTANT) as cloud:
            done = call(cloud, "POST", f"/run/v2/{operation['name']}:wait", {"timeout": "20s"})
            assert done["response"]["terminalCondition"]["state"] == "CONDITION_SUCCEEDED"


class TestLock:
    def test_a_second_cloud_on_the_same_state_is_refused(self, tmp_path):
        lock = StateLock.take(tmp_path)
        with pytest.raises(
            StateError, match=f"Another local cloud \\(process {os.getpid()}\\) is using the state folder"
        ):
            StateLock.take(tmp_path)
        lock.release()
        StateLock.take(tmp_path).release()


class TestPrivacy:
    def test_everything_below_an_old_folder_becomes_its_owners_alone(self, tmp_path):
        state = tmp_path / "open"
        (state / "objects" / "deep").mkdir(parents=True)
        for name in ("resources.sqlite", "resources.sqlite-wal", "resources.sqlite-shm", "objects/deep/a", "token-key"):
            (state / name).write_bytes(b"")
            (state / name).chmod(0o666)
        (state / "objects").chmod(0o777)
        (state / "tool").write_text("#!/bin/sh")
        (state / "tool").chmod(0o755)
        (state / "link").symlink_to(tmp_path)
        tmp_path.chmod(0o755)
        state.chmod(0o755)
        StateLock.take(state).release()
        found = {path.relative_to(state).as_posix(): path.lstat().st_mode & 0o777 for path in state.rglob("*")}
        found.pop("link")
        assert {found.pop(name) for name in ("objects", "objects/deep", "tool")} == {0o700}
        assert set(found.values()) == {0o600}
        assert state.stat().st_mode & 0o777 == 0o700
        assert tmp_path.stat().st_mode & 0o777 == 0o755

    def test_a_running_cloud_writes_for_its_owner_alone_and_leaves_the_commands_umask(self, tmp_path, localcloud):
        state = tmp_path / "open"
        state.mkdir(mode=0o755)
        script = f"""
import base64, json, os, pathlib, urllib.request as u
def call(verb, path, body):
    given = {{"Authorization": "Bearer " + os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"], "Content-Type": "application/json"}}
    return u.urlopen(u.Request(os.environ["LOCALCLOUD_URL"] + path, json.dumps(body).encode(), given, method=verb)).read()
secrets = "/secretmanager/v1{P}/secrets"
call("POST", secrets + "?secretId=s", {{"replication": {{"automatic": {{}}}}}})
call("POST", secrets + "/s:addVersion", {{"payload": {{"data": "eA=="}}}})
call("POST", "/storage/storage/v1/b?project=local-project", {{"name": "kept-bucket"}})
call("POST", "/upload/storage/v1/b/kept-bucket/o?uploadType=media&name=a", {{}})
state = pathlib.Path({str(state)!r})
open_ones = [str(path) for path in [state, *state.rglob("*")] if path.lstat().st_mode & 0o077 and not path.is_symlink()]
pathlib.Path({str(tmp_path / "made")!r}).touch()
print(json.dumps([open_ones, sorted(path.name for path in state.glob("*")), os.umask(0)]))
"""
        old = os.umask(0o022)
        try:
            world = ("--scenario", "prepared")
            done = localcloud("run", *world, "--state", str(state), "--", sys.executable, "-c", script)
        finally:
            os.umask(old)
        assert done.returncode == 0, done.stderr
        open_ones, names, umask = json.loads(done.stdout)
        assert open_ones == []
        assert {"resources.sqlite", "resources.sqlite-wal", "cloud.json", "credentials.json", "objects"} <= set(names)
        assert umask == 0o022
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644

    def test_the_folder_of_another_user_is_refused(self, tmp_path, monkeypatch):
        owner = tmp_path.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(StateError, match=f"belongs to another user \\(uid {owner}\\), who can read its secrets"):
            StateLock.take(tmp_path)


class TestDescription:
    """`localcloud env` speaks for a living cloud only (the process that wrote the description)."""

    def killed(self, state):
        """Leave the description of a process that was killed."""
        script = (
            "import os, signal, sys; from pathlib import Path; from localcloud.world.state import *; "
            "state = Path(sys.argv[1]); lock = StateLock.take(state); kept = describe(state, {'environment': {}}); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        code = subprocess.run([sys.executable, "-c", script, state], cwd=ROOT, timeout=LIMIT_S, check=False).returncode
        assert code == -signal.SIGKILL
        assert (state / "cloud.json").exists()

    def test_a_restart_does_not_speak_for_the_killed_cloud(self, tmp_path):
        self.killed(tmp_path)
        lock = StateLock.take(tmp_path)
        assert not (tmp_path / "cloud.json").exists()
        with pytest.raises(StateError, match=r"is still starting\. Retry in a few seconds"):
            description(tmp_path)
        lock.release()

    def test_the_moment_before_the_restart_removes_the_old_description(self, tmp_path):
        self.killed(tmp_path)
        with (tmp_path / "lock").open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            with pytest.raises(StateError, match="is still starting"):
                description(tmp_path)


class TestRun:
    def test_the_exit_code_of_the_command_is_passed_on(self, localcloud):
        done = localcloud("run", "--", sys.executable, "-c", "raise SystemExit(7)")
        assert done.returncode == 7
        assert done.stderr.count("\n") == 1
        assert "SIMULATED" in done.stderr

    def test_the_command_finds_the_cloud_by_its_environment(self, localcloud, monkeypatch):
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of the real deployment")
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE_FILE", "of the real deployment")
        script = "import json, os, urllib.request as u; print(json.dumps([dict(os.environ), json.load(u.urlopen(os.environ['LOCALCLOUD_URL'] + '/admin/'))]))"
        environment, overview = json.loads(
            localcloud("run", "--project", "my-project", "--", sys.executable, "-c", script).stdout
        )
        assert (
            overview["project"] == environment["GOOGLE_CLOUD_PROJECT"] == environment["GOOGLE_PROJECT"] == "my-project"
        )
        assert (environment["PULUMI_CONFIG_PASSPHRASE"], "PULUMI_CONFIG_PASSPHRASE_FILE" in environment) == (
            "local",
            False,
        )
        assert environment["PULUMI_BACKEND_URL"] == f"file://{environment['LOCALCLOUD_STATE']}/pulumi"
        assert environment["PULUMI_DEBUG_PROVIDERS"].startswith("gcp:")
        assert environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN"] == environment["LOCALCLOUD_URL"] + "/run/"
        assert environment["PATH"].split(os.pathsep)[0] == PROGRAMS
        assert (
            not Path(environment["GOOGLE_APPLICATION_CREDENTIALS"]).exists(),
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT" in environment,
        ) == (True, False)

    def test_the_real_plugin_gets_endpoints_and_images_are_still_simulated(self, localcloud):
        script = "import json, os; print(json.dumps(dict(os.environ)))"
        environment = json.loads(localcloud("run", "--providers", "real", "--", sys.executable, "-c", script).stdout)
        assert re.fullmatch(r"docker:\d+", environment["PULUMI_DEBUG_PROVIDERS"])
        assert environment["GOOGLE_COMPUTE_CUSTOM_ENDPOINT"] == environment["LOCALCLOUD_URL"] + "/compute/compute/beta/"
        assert environment["GOOGLE_CLOUD_RUN_V2_CUSTOM_ENDPOINT"] == environment["LOCALCLOUD_URL"] + "/run/v2/"

    def test_real_credentials_do_not_reach_the_command(self, localcloud, monkeypatch):
        for name in " ".join(REAL.values()).split():
            monkeypatch.setenv(name, "real")
        monkeypatch.setenv("PIP_INDEX_URL", "https://user:real@packages.example/simple")
        for name in ("DATABASE_URL", "HTTPS_PROXY", "SENTRY_DSN", "MIRRORS"):
            monkeypatch.setenv(name, "https://user:real@host.example:5432/x")
        monkeypatch.setenv("HTTP_PROXY", "http://kept:8080/path?mail=a@b")
        for name in ("GITHUB_REPOSITORY", "TOKENIZERS_PARALLELISM", "PULUMI_HOME", "KEYBOARD"):
            monkeypatch.setenv(name, "kept")
        script = "import json, os; print(json.dumps(dict(os.environ)))"
        environment = json.loads(localcloud("run", "--", sys.executable, "-c", script).stdout)
        assert [name for name in environment if "real" in environment[name] and name != "PYTEST_CURRENT_TEST"] == []
        assert netrc.netrc(environment["NETRC"]).hosts == {}, "aiohttp warns of a missing file in each chat"
        logins = {environment[name].rpartition("/")[0] for name in LOGINS if name != "NETRC"}
        assert logins == {f"{environment['LOCALCLOUD_STATE']}/logins"}
        assert environment["HTTP_PROXY"] == "http://kept:8080/path?mail=a@b"
        assert [name for name, value in environment.items() if value == "kept"] == [
            "GITHUB_REPOSITORY",
            "TOKENIZERS_PARALLELISM",
            "PULUMI_HOME",
            "KEYBOARD",
        ]
        assert "127.0.0.1" in environment["NO_PROXY"]

    def test_a_signal_goes_on_to_the_command(self):
        # Python acts on a signal between two sleeps.
        script = (
            "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(42)); print('up', flush=True)\n"
            "for _ in range(600): time.sleep(0.1)"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "localcloud", "run", "--", sys.executable, "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 42
        assert errors.count(b"\n") == 1

    def test_a_signal_while_the_command_starts_goes_on_to_it(self):
        script = (
            "import asyncio, os, signal, sys; from localcloud import shell\n"
            "start = asyncio.create_subprocess_exec\n"
            "async def slow(*words, **options):\n"
            "    child = await start(*words, **options)\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    await asyncio.sleep(0.1)\n"
            "    return child\n"
            "asyncio.create_subprocess_exec = slow\n"
            "sys.exit(asyncio.run(shell.run_child(['sleep', '60'], os.environ)))"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=LIMIT_S, check=False)
        assert done.returncode == 128 + signal.SIGTERM

    def test_refusals_are_one_sentence(self, localcloud):
        absent = "the command 'no-such-command-anywhere' was not found on PATH."
        refusals = (
            (["run"], 2, "No command to run"),
            (["run", "--", "no-such-command-anywhere"], 127, absent),
            (["run", "--scenario", "none.yaml", "--", "true"], 2, "Cannot read none.yaml: "),
            (["run", "--speed", "0", "--", "true"], 2, "0 is not greater than 0"),
            (["env", "--state", "/nonexistent/state"], 2, "No local cloud runs on the state folder /nonexistent/state"),
            (["env", "--state", __file__], 2, "No local cloud runs on the state folder"),
            (["shell", "--state", __file__], 2, "cannot be used: File exists"),
            (["run", "--state", "/proc/nothing", "--", "true"], 2, "The state folder /proc/nothing cannot be used"),
        )
        said = [localcloud(*arguments) for arguments, _, _ in refusals]
        found = [
            (done.args, done.returncode, message in done.stderr)
            for done, (_, _, message) in zip(said, refusals, strict=True)
        ]
        assert found == [(tuple(arguments), code, True) for arguments, code, _ in refusals]
        assert "Traceback" not in "".join(done.stderr for done in said)


class TestProviders:
    """The plugins of `shell`, which are those of `serve`."""

    @pytest.fixture
    def shown(self, localcloud, tmp_path, monkeypatch):
        """Run `shell` beside an engine that has a version of the plugin. A file named bash, the user's shell, prints the variables."""
        shell = tmp_path / "bash"
        shell.write_text('#!/bin/sh\necho "$PULUMI_DEBUG_PROVIDERS $GOOGLE_COMPUTE_CUSTOM_ENDPOINT"\n')
        shell.chmod(0o700)
        monkeypatch.setenv("SHELL", str(shell))
        monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi"))

        def run(installed, options):
            if installed:
                plugin = tmp_path / "pulumi" / "plugins" / f"resource-gcp-v{installed}" / "pulumi-resource-gcp"
                plugin.parent.mkdir(parents=True)
                plugin.touch()
            return localcloud("shell", "--state", str(tmp_path / "state"), *options)

        return run

    @pytest.mark.parametrize(
        ("installed", "options", "real"),
        [
            ("", (), False),
            ("0.0.1", (), False),  # the engine would download the requested version
            (version("pulumi-gcp"), (), True),
            (version("pulumi-gcp"), ("--providers", "standin"), False),
            ("", ("--providers", "real"), True),
        ],
    )
    def test_a_shell_uses_the_real_plugin_if_the_engine_has_it(self, shown, installed, options, real):
        done = shown(installed, options)
        assert re.fullmatch(r"docker:\d+ http://127\S+\n" if real else r"gcp:\d+,docker:\d+ \n", done.stdout)
        assert f"with {'the real' if real else 'the stand-in of'} pulumi-gcp" in done.stderr


class TestServe:
    """The cloud in a separate process, which `env` finds."""

    @staticmethod
    def started(state, log):
        command = [sys.executable, "-m", "localcloud", "serve", "--providers", "standin", "--state", state]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @staticmethod
    def answered(localcloud, state):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = localcloud("env", "--state", state, "--json")
            if found.returncode == 0:
                return json.loads(found.stdout)
            assert found.returncode == 2, found.stderr
            time.sleep(0.05)  # another process comes up
        raise AssertionError("no cloud came up")

    def test_it_prints_how_to_use_it_and_env_finds_it_also_after_a_kill_and_a_restart(self, tmp_path, localcloud):
        state, written = str(tmp_path / "state"), tmp_path / "log"
        with written.open("w") as log:
            first = self.started(state, log)
            try:
                before = self.answered(localcloud, state)
                overview = requests.get(before["LOCALCLOUD_URL"] + "/admin/", timeout=60).json()
                refused = localcloud("serve", "--state", state)
            finally:
                first.kill()
                first.wait(timeout=LIMIT_S)
            assert overview["simulated"] is True
            assert (refused.returncode, "Another local cloud" in refused.stderr) == (2, True)
            second = self.started(state, log)
            try:
                after = self.answered(localcloud, state)
                assert after["PULUMI_DEBUG_PROVIDERS"] != before["PULUMI_DEBUG_PROVIDERS"]
                for plugin in after["PULUMI_DEBUG_PROVIDERS"].split(","):
                    socket.create_connection(("127.0.0.1", int(plugin.rpartition(":")[2])), 10).close()
                exports = localcloud("env", "--state", state).stdout
                assert "export LOCALCLOUD_URL=http://127.0.0.1:" in exports
                twice = 'eval "$ENV"; one=$PATH:$NO_PROXY; eval "$($ASK)"; test "$one" = "$PATH:$NO_PROXY"'
                ask = f"{sys.executable} -m localcloud env --state {state}"
                subprocess.run(
                    ["sh", "-c", twice],
                    cwd=ROOT,
                    env={**os.environ, "ENV": exports, "ASK": ask},
                    timeout=LIMIT_S,
                    check=True,
                )
            finally:
                second.send_signal(signal.SIGINT)
                assert second.wait(timeout=LIMIT_S) == 0
        assert "localcloud env --state" in written.read_text()
        assert localcloud("env", "--state", state).returncode == 2
