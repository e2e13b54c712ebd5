"""The real pulumi-docker builds and pushes what the product's serving image declares, and the local cloud's stand-in is compared with it."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final, TypedDict, cast

from judges.real.daemon import DockerDaemon, running_daemon
from judges.real.home import ROOT, Need, RealHome, debian_packages, run
from judges.real.local_cloud import LocalCloud, running_cloud
from judges.real.plugins import get_plugin, pulumi_home
from judges.real.registry import ImageRegistry, running_registry
from judges.real.rows import DifferenceError, JudgeReport, Row, print_progress, require

JUDGE: Final = "pulumi-docker"
PROGRAM: Final = Path(__file__).with_name("image_program")
LOCATION: Final = "us-east5"
HOST: Final = f"{LOCATION}-docker.pkg.dev"
ADDRESS: Final = "127.0.0.78"
"""Loopback address of the registry under Google's name. Docker speaks plain HTTP to it."""
UPSTREAM: Final = "vllm/vllm-tpu"
PROJECT: Final = "local-project"
SHELL: Final = "busybox-static"
IMAGE: Final = "docker:index/image:Image"
FILES: Final = {
    "Dockerfile": 'ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY said.txt /said.txt\nRUN cp /said.txt /built.txt\nCMD ["cat", "/built.txt"]\n',
    "said.txt": "first\n",
}
FAILING: Final = FILES["Dockerfile"].replace("RUN ", "RUN echo the-reason >&2 && exit 7\nRUN ")
_UNCHANGED: Final = ("preview", "--expect-no-changes")


class _PreviewedStep(TypedDict):
    op: str
    newState: dict[str, object]
    detailedDiff: dict[str, dict[str, str]] | None


class _Resource(TypedDict):
    type: str
    inputs: dict[str, object]
    outputs: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginProject:
    """A project folder with the program, and everything that it talks to."""

    stack: str
    folder: Path
    cloud: LocalCloud
    daemon: DockerDaemon
    registry: ImageRegistry
    variables: Mapping[str, str]

    @property
    def repository(self) -> str:
        """The repository of the stack."""
        return f"judged-{self.stack}"

    @property
    def context(self) -> Path:
        """Folder of the image."""
        return self.folder / "image"

    def pulumi(self, *words: str) -> CompletedProcess[str]:
        """Run the engine on the stack."""
        return self.cloud.pulumi(self.folder, *words, "--stack", self.stack, variables=self.variables)

    def up(self) -> CompletedProcess[str]:
        """Deploy without a preview."""
        return self.pulumi("up", "--yes", "--skip-preview")

    def ref(self) -> str:
        """Return the reference that the component returned."""
        return self.pulumi("stack", "output", "ref").stdout.strip()

    def pushed(self) -> str:
        """Return the digest that the registry has under the image's name, empty if none."""
        return self.registry.digest(f"{PROJECT}/{self.repository}/{UPSTREAM}", "latest") or ""

    def image(self) -> dict[str, object]:
        """Return the image's inputs and outputs in the state, with secrets in plain text."""
        state = json.loads(self.pulumi("stack", "export", "--show-secrets").stdout)
        found = next(
            each for each in cast("list[_Resource]", state["deployment"]["resources"]) if each["type"] == IMAGE
        )
        return {f"{part}.{name}": value for part in ("inputs", "outputs") for name, value in found[part].items()}


def docker_plugin(home: RealHome) -> Sequence[Row]:
    """Judge the image that components/serving_image.py declares, built and pushed by the real plugin."""
    version = get_plugin(home, "docker")
    shell = Need(what="a shell for the base image (Debian package)", where="the system", disk_gib=0.01, takes_s=10)
    debian_packages(home, shell, (SHELL,))
    report = JudgeReport(JUDGE, version)
    with (
        running_registry(home, name="upstream") as upstream,
        running_registry(home, name="google", address=f"{ADDRESS}:80") as registry,
        running_daemon(
            home,
            name="images",
            bridge=True,
            hosts={HOST: ADDRESS},
            arguments=[f"--registry-mirror=http://{upstream.address}"],
        ) as daemon,
        running_cloud(home, name="images") as cloud,
    ):
        print_progress(f"Docker {daemon.version} ({daemon.driver}), registry {registry.version}, {JUDGE} {version}")
        digest = _base(daemon, upstream)
        bench = _bench(home, cloud, daemon, registry, digest)
        _judge(report, bench)
        _compare(report, bench, _bench(home, cloud, daemon, registry, digest, simulated=True))
    return report.rows


def _judge(report: JudgeReport, bench: PluginProject) -> None:
    """Judge the life of an image."""
    with report.judging(
        f"builds and pushes by Docker {bench.daemon.version}; the component returns the registry's digest"
    ) as notes:
        _succeeded(bench.up())
        first = bench.pushed()
        ref = bench.ref()
        wanted = f"{HOST}/{PROJECT}/{bench.repository}/{UPSTREAM}@{first}"
        require(ref == wanted, f"the component returned {ref}, the registry has {wanted}")
        notes.append(ref)
    with report.judging("a machine pulls the reference and runs what was built"):
        _prints(bench, "first")
    with report.judging("preview and refresh show no changes"):
        _succeeded(bench.pulumi(*_UNCHANGED))
        _succeeded(bench.pulumi(*_UNCHANGED, "--refresh"))
    with report.judging("a changed file of the folder builds and pushes another image"):
        before = bench.pushed()
        (bench.context / "said.txt").write_text("second\n", encoding="utf-8")
        shown = bench.pulumi("preview").stdout
        require("1 to update" in shown, f"the preview does not show one update: {_last(shown)}")
        _succeeded(bench.up())
        require(bench.pushed() != before, "the registry still has the former image")
        require(bench.ref().endswith(f"@{bench.pushed()}"), f"the component returned {bench.ref()}")
        _prints(bench, "second")
    with report.judging("a RUN that fails says its command, its exit code and its output, and pushes nothing") as notes:
        _fails(bench, notes)
    with report.judging("a registry that is down says so, and the next up pushes"):
        bench.registry.service.stop()
        (bench.context / "said.txt").write_text("third\n", encoding="utf-8")
        refused = bench.up()
        bench.registry.start()
        require(refused.returncode != 0, "up ended with 0 although nothing could be pushed")
        require(
            "connection refused" in refused.stdout + refused.stderr, f"the reason is missing: {_last(refused.stdout)}"
        )
        _succeeded(bench.up())
        _prints(bench, "third")
    with report.judging("destroy succeeds and leaves the image in the registry (its repository deletes it)"):
        last = bench.pushed()
        _succeeded(bench.pulumi("destroy", "--yes", "--skip-preview"))
        require(bench.pushed() == last, "the image was deleted")


def _fails(bench: PluginProject, notes: list[str]) -> None:
    before = bench.pushed()
    (bench.context / "Dockerfile").write_text(FAILING, encoding="utf-8")
    failed = bench.up()
    text = failed.stdout + failed.stderr
    require(failed.returncode != 0, "up ended with 0 although a RUN failed")
    missing = [word for word in ("the-reason", "exit code: 7") if word not in text]
    require(not missing, f"the error lacks {' and '.join(missing)}: {_last(text)}")
    notes += re.findall(r"error: .*exit code: 7.*", text)[:1]
    require(bench.pushed() == before, "an image was pushed")
    (bench.context / "Dockerfile").write_text(FILES["Dockerfile"], encoding="utf-8")
    _succeeded(bench.pulumi(*_UNCHANGED))


def _without_dockerfile(context: Path) -> None:
    (context / "Dockerfile").unlink()


def _without_from(context: Path) -> None:
    (context / "Dockerfile").write_text("RUN true\n", encoding="utf-8")


def _empty(context: Path) -> None:
    (context / "Dockerfile").write_text("# nothing\n", encoding="utf-8")


def _missing(context: Path) -> None:
    shutil.rmtree(context)


_REFUSED: Final[Mapping[str, Callable[[Path], None]]] = {
    "a folder without a Dockerfile": _without_dockerfile,
    "a Dockerfile without FROM": _without_from,
    "a Dockerfile without instructions": _empty,
    "a folder that is missing": _missing,
}


def _compare(report: JudgeReport, bench: PluginProject, simulated: PluginProject) -> None:
    """Compare the stand-in with the real plugin on the same program."""
    with report.judging("the stand-in's state has the real one's keys and values but for digests"):
        for each in (bench, simulated):
            _files(each.context)
            # A stand-in reads paths in the local cloud's folder, not in the program's.
            _succeeded(each.pulumi("config", "set", "context", str(each.context)))
            _succeeded(each.up())
        require(
            (found := _plain(simulated)) == (wanted := _plain(bench)),
            f"the stand-in has {_differences(found, wanted)}",
        )
    with report.judging("the stand-in's preview of a changed file has the real one's differences"):
        for each in (bench, simulated):
            (each.context / "said.txt").write_text("changed\n", encoding="utf-8")
        real, found = _detailed(bench), _detailed(simulated)
        require(real == found, f"the stand-in shows {found} instead of {real}")
    for what, change in _REFUSED.items():
        with report.judging(f"the stand-in refuses {what} in the real plugin's words") as notes:
            for each in (bench, simulated):
                _files(each.context)
                change(each.context)
            real, other = bench.pulumi("preview"), simulated.pulumi("preview")
            if real.returncode == 0 and other.returncode == 0:
                real, other = bench.up(), simulated.up()
            require(real.returncode != 0, "the real plugin accepts it")
            said, found = _error(real).replace(str(bench.folder), ""), _error(other).replace(str(simulated.folder), "")
            require(other.returncode != 0, f"the stand-in accepts it; the real plugin: {said}")
            require(found == said, f"the stand-in: {found}; the real plugin: {said}")
            notes.append(said)
    for each in (bench, simulated):
        _files(each.context)
        each.pulumi("destroy", "--yes", "--skip-preview")


def _detailed(bench: PluginProject) -> dict[str, str]:
    """Return the properties that a preview changes in the image, and how."""
    preview = cast("dict[str, list[_PreviewedStep]]", json.loads(bench.pulumi("preview", "--json").stdout))
    step = next(each for each in preview["steps"] if each["newState"]["type"] == IMAGE)
    return {"step": step["op"]} | {name: each["kind"] for name, each in (step["detailedDiff"] or {}).items()}


def _plain(bench: PluginProject) -> dict[str, str]:
    """Return the image's outputs as texts, without digests and the folder's path."""
    text = {name: json.dumps(value, sort_keys=True) for name, value in bench.image().items()}
    digest = re.compile(r"\b[0-9a-f]{64}\b")
    return {
        name: digest.sub("DIGEST", value).replace(str(bench.folder), "FOLDER").replace(bench.repository, "REPOSITORY")
        for name, value in text.items()
    }


def _differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return "; ".join(f"{name} {found.get(name)} instead of {wanted.get(name)}" for name in names)


def _prints(bench: PluginProject, word: str) -> None:
    """Pull the reference with an empty store, and run it."""
    ref = bench.ref()
    bench.daemon.docker("image", "prune", "--all", "--force")
    bench.daemon.docker("rmi", "--force", f"{HOST}/{PROJECT}/{bench.repository}/{UPSTREAM}")
    done = bench.daemon.docker("run", "--rm", "--network=none", ref)
    require(
        done.stdout.strip() == word, f"the image prints {done.stdout!r} instead of {word}: {done.stderr.strip()[:200]}"
    )


def _succeeded(done: CompletedProcess[str]) -> None:
    if done.returncode:
        raise DifferenceError(f"exit code {done.returncode}: {_error(done)}")


def _error(done: CompletedProcess[str]) -> str:
    """Return the first error of the engine or a provider."""
    text = done.stdout + done.stderr
    found = re.findall(r"^\s*(error: .*(?:\n\s{4,}.*)?)", text, re.MULTILINE)
    reasons = [each for each in found if not each.endswith(("update failed", "preview failed"))]
    return " ".join((reasons[0] if reasons else _last(text)).split())


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def _base(daemon: DockerDaemon, upstream: ImageRegistry) -> str:
    """Push a base image with a shell under the upstream image's name, and return its digest."""
    name = f"{upstream.address}/{UPSTREAM}:base"
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "root/bin"
        programs.mkdir(parents=True)
        shutil.copy2("/bin/busybox", programs / "busybox")
        for each in ("sh", "cat", "cp", "echo"):
            (programs / each).symlink_to("busybox")
        archive = Path(folder) / "base.tar"
        run(["tar", "--create", f"--file={archive}", f"--directory={programs.parent}", "bin"])
        for step in (("import", str(archive), name), ("push", name), ("rmi", name)):
            done = daemon.docker(*step)
            require(done.returncode == 0, f"docker {step[0]}: {_last(done.stderr)}")
    digest = upstream.digest(UPSTREAM, "base")
    require(digest is not None, "the base image is not in the registry")
    return str(digest)


def _bench(
    home: RealHome,
    cloud: LocalCloud,
    daemon: DockerDaemon,
    registry: ImageRegistry,
    digest: str,
    *,
    simulated: bool = False,
) -> PluginProject:
    """Copy the program and the image's folder, and make the stack. `simulated`: the stand-in builds."""
    stack = "simulated" if simulated else "real"
    folder = home.folder / "programs" / stack
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PROGRAM, folder)
    _files(folder / "image")
    plugins = cloud.environment["PULUMI_DEBUG_PROVIDERS"].split(",")
    kept = [each for each in plugins if simulated or not each.startswith("docker:")]
    variables = {
        **daemon.environment,
        "PULUMI_HOME": str(pulumi_home()),
        "PULUMI_DEBUG_PROVIDERS": ",".join(kept),
        "PYTHONPATH": str(ROOT),
    }
    bench = PluginProject(
        stack=stack, folder=folder, cloud=cloud, daemon=daemon, registry=registry, variables=variables
    )
    settings = {"project": PROJECT, "location": LOCATION, "repository": bench.repository, "upstream": UPSTREAM}
    settings |= {"digest": digest, "context": bench.context.name}
    (folder / ".venv").symlink_to(ROOT / ".venv")
    cloud.pulumi(folder, "stack", "init", stack, variables=variables)
    words = [f"--plaintext={name}={value}" for name, value in settings.items()]
    _succeeded(cloud.pulumi(folder, "config", "set-all", "--stack", stack, *words, variables=variables))
    return bench


def _files(context: Path) -> None:
    context.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (context / name).write_text(text, encoding="utf-8")
