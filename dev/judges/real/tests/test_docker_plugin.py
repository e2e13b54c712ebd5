"""Part `docker-plugin`: the real pulumi-docker builds and pushes what components/serving_image.py declares, and the stand-in is compared with it.

The tests follow one another.
"""

import re
import shutil
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.daemon import running_daemon
from dev.judges.real.docker_plugin import (
    ADDRESS,
    FILES,
    HOST,
    PROJECT,
    UPSTREAM,
    check_prints,
    check_success,
    detailed,
    differences,
    error_of,
    get_plugin,
    plain,
    plugin_project,
    push_base,
    write_files,
)
from dev.judges.real.home import Need, debian_packages
from dev.judges.real.local_cloud import running_cloud
from dev.judges.real.registry import running_registry
from dev.judges.real_vllm.environment import last_line

FAILING = FILES["Dockerfile"].replace("RUN ", "RUN echo the-reason >&2 && exit 7\nRUN ")
UNCHANGED = ("preview", "--expect-no-changes")


def planted_lie():
    done = CompletedProcess([], 0)
    both = [
        SimpleNamespace(up=lambda: done, image=lambda ref=ref: {"ref": ref}, folder="folder", repository="repository")
        for ref in ("a", "b")
    ]
    refuse_planted("a stand-in with another reference has the real state", lambda: test_state(both))


@pytest.fixture(scope="module")
def make(home, judge):
    """Return a function that makes the project of the real plugin, or of the stand-in. Both have the same cloud, daemon and registry."""
    version = get_plugin(home)
    shell = Need(what="a shell for the base image (Debian package)", where="the system", disk_gib=0.01, takes_s=10)
    debian_packages(home, shell, ("busybox-static",))
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
        judge(f"pulumi-docker {version}, Docker {daemon.version} ({daemon.driver}), registry {registry.version}")
        digest = push_base(daemon, upstream)
        yield lambda *, simulated: plugin_project(home, cloud, daemon, registry, digest, simulated=simulated)


@pytest.fixture(scope="module")
def bench(make):
    """The project of the real plugin."""
    return make(simulated=False)


@pytest.fixture(scope="module")
def both(bench, make):
    """The project of the real plugin and the one of the stand-in, both with the files of the start."""
    found = bench, make(simulated=True)
    for each in found:
        write_files(each.context)
        # A stand-in reads paths in the local cloud's folder, not in the program's.
        check_success(each.pulumi("config", "set", "context", str(each.context)))
    yield found
    for each in found:
        write_files(each.context)
        each.pulumi("destroy", "--yes", "--skip-preview")


def test_build(bench, notes):
    """Docker builds and pushes; the component returns the registry's digest."""
    check_success(bench.up())
    ref = bench.ref()
    wanted = f"{HOST}/{PROJECT}/{bench.repository}/{UPSTREAM}@{bench.pushed()}"
    assert ref == wanted, f"the component returned {ref}, the registry has {wanted}"
    notes.append(ref)


def test_machine(bench):
    """A machine pulls the reference and runs what was built."""
    check_prints(bench, "first")


def test_unchanged(bench):
    """Preview and refresh show no changes."""
    check_success(bench.pulumi(*UNCHANGED))
    check_success(bench.pulumi(*UNCHANGED, "--refresh"))


def test_changed_file(bench):
    """A changed file of the folder builds and pushes another image."""
    before = bench.pushed()
    (bench.context / "said.txt").write_text("second\n", encoding="utf-8")
    shown = bench.pulumi("preview").stdout
    assert "1 to update" in shown, f"the preview does not show one update: {last_line(shown)}"
    check_success(bench.up())
    assert bench.pushed() != before, "the registry still has the former image"
    assert bench.ref().endswith(f"@{bench.pushed()}"), f"the component returned {bench.ref()}"
    check_prints(bench, "second")


def test_failing_run(bench, notes):
    """A RUN that fails says its command, its exit code and its output, and pushes nothing."""
    before = bench.pushed()
    (bench.context / "Dockerfile").write_text(FAILING, encoding="utf-8")
    failed = bench.up()
    text = failed.stdout + failed.stderr
    assert failed.returncode != 0, "up ended with 0 although a RUN failed"
    missing = [word for word in ("the-reason", "exit code: 7") if word not in text]
    assert not missing, f"the error lacks {' and '.join(missing)}: {last_line(text)}"
    notes += re.findall(r"error: .*exit code: 7.*", text)[:1]
    assert bench.pushed() == before, "an image was pushed"
    (bench.context / "Dockerfile").write_text(FILES["Dockerfile"], encoding="utf-8")
    check_success(bench.pulumi(*UNCHANGED))


def test_absent_registry(bench):
    """A registry that is down says so, and the next up pushes."""
    bench.registry.service.stop()
    (bench.context / "said.txt").write_text("third\n", encoding="utf-8")
    refused = bench.up()
    bench.registry.start()
    assert refused.returncode != 0, "up ended with 0 although nothing could be pushed"
    text = refused.stdout + refused.stderr
    assert "connection refused" in text, f"the reason is missing: {last_line(refused.stdout)}"
    check_success(bench.up())
    check_prints(bench, "third")


def test_destroy(bench):
    """Destroy succeeds and leaves the image in the registry (its repository deletes it)."""
    last = bench.pushed()
    check_success(bench.pulumi("destroy", "--yes", "--skip-preview"))
    assert bench.pushed() == last, "the image was deleted"


def test_state(both):
    """The stand-in's state has the real one's keys and values but for digests."""
    for each in both:
        check_success(each.up())
    wanted, found = map(plain, both)
    assert found == wanted, f"the stand-in has {differences(found, wanted)}"


def test_preview(both):
    """The stand-in's preview of a changed file has the real one's differences."""
    for each in both:
        (each.context / "said.txt").write_text("changed\n", encoding="utf-8")
    real, found = map(detailed, both)
    assert real == found, f"the stand-in shows {found} instead of {real}"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda context: (context / "Dockerfile").unlink(), id="a folder without a Dockerfile"),
        pytest.param(
            lambda context: (context / "Dockerfile").write_text("RUN true\n", encoding="utf-8"),
            id="a Dockerfile without FROM",
        ),
        pytest.param(
            lambda context: (context / "Dockerfile").write_text("# nothing\n", encoding="utf-8"),
            id="a Dockerfile without instructions",
        ),
        pytest.param(shutil.rmtree, id="a folder that is missing"),
    ],
)
def test_refusal(both, change, notes):
    """The stand-in refuses in the real plugin's words."""
    for each in both:
        write_files(each.context)
        change(each.context)
    real, other = (each.pulumi("preview") for each in both)
    if real.returncode == 0 and other.returncode == 0:
        real, other = (each.up() for each in both)
    assert real.returncode != 0, "the real plugin accepts it"
    said, found = (error_of(done).replace(str(each.folder), "") for done, each in zip((real, other), both, strict=True))
    assert other.returncode != 0, f"the stand-in accepts it; the real plugin: {said}"
    assert found == said, f"the stand-in: {found}; the real plugin: {said}"
    notes.append(said)
