"""Part `images`: the folders of images/ without their base image: their packages, the base's check, the replaced modules, upstream's tests of them.

None of them is built: the base is on Docker Hub.
"""

import re
import shutil
from subprocess import TimeoutExpired

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.home import ROOT, Need, print_progress, run
from dev.judges.real.upstream_tests import NEEDS, Modules, count_tests, run_tests
from dev.judges.tpu_compiler import environment
from dev.judges.tpu_compiler.wheels import LEFT_OUT, wheels_for
from gemma_serving.contracts.errors import CommandRefusedError

LINEAR = "vllm-tpu-w4a16"
EXPERTS = "vllm-tpu-w4a16-experts"
BASE_VERSION = "0.30.1rc1.dev221+gc8d7a7dd1"
"""vLLM of the base of both folders. The environment with the packages of its day stands for it."""
UPSTREAM = "https://github.com/vllm-project/tpu-inference"
QUANTIZATION = "tpu_inference.layers.jax.quantization"
MODULES = (f"{QUANTIZATION}.wna16", f"{QUANTIZATION}.compressed_tensors", "tpu_inference.models.jax.gemma4")
TESTS = tuple(
    f"tests/{path}.py"
    for path in (
        "layers/jax/quantization/test_wna16",
        "layers/jax/quantization/test_compressed_tensors",
        "models/jax/test_gemma4",
        "models/jax/test_gemma4_kv_share",
        "models/jax/test_gemma4_ple",
    )
)
FETCH_LIMIT_S = 120
NO_BUILDX = "Docker has no buildx. Install docker-buildx"


def planted_lie():
    failed = '<testsuite><testcase name="t"><failure message="assert 1 == 2"/></testcase></testsuite>'
    refuse_planted("a failed test of upstream's needs a TPU", lambda: str(count_tests(failed)))


def test_no_buildx(notes):
    """images/build.sh names the missing package where Docker has no buildx."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if run(["docker", "buildx", "version"]).returncode == 0:
        pytest.skip("this machine's Docker has buildx")
    done = run([str(ROOT / "images/build.sh"), LINEAR])
    assert done.returncode == 1, f"exit code {done.returncode}: {done.stderr.strip()}"
    assert NO_BUILDX in done.stderr, done.stderr.strip()
    notes.append(done.stderr.strip())


@pytest.mark.skip(reason="its base is on Docker Hub, and its server needs a TPU")
@pytest.mark.parametrize("name", [LINEAR, EXPERTS])
def test_image(name):
    """The image builds and serves."""


@pytest.fixture(scope="module")
def python(home, judge):
    """The interpreter of the packages that stand for the base's."""
    base = wheels_for(BASE_VERSION).wheels
    judge(base.words)
    disk_gib = 0.0 if environment.installed(base) else base.disk_gb * 1e9 / 2**30
    folder = str(environment.folder(base))
    what = f"packages of the base's day ({base.name})"
    home.get(Need(what=what, where=folder, disk_gib=round(disk_gib, 1), takes_s=base.install_s))
    try:
        return environment.install(base, report=print_progress)
    except CommandRefusedError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="class")
def modules(request, home, python):
    """An empty folder for the packages of the class's image."""
    folder = home.folder / "images" / request.cls.folder.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Modules(python=python, folder=folder)


class TestLinear:
    """The folder that installs a release over the base."""

    folder = ROOT / "images" / LINEAR

    def test_packages(self, modules, notes):
        """vllm-tpu-w4a16: the index has each package by its hash."""
        install(modules, self.folder / "requirements.txt")
        notes.append(", ".join(pins_of(self.folder / "requirements.txt")))

    def test_check(self, modules, notes):
        """vllm-tpu-w4a16: the build's check finds each requirement among the packages of the base's day."""
        code, text = modules.run(str(self.folder / "check.py"), *checked(self.folder))
        left_out = re.compile(rf"requires ({'|'.join(LEFT_OUT)})\b.* not inst")
        unmet = {line for line in text.splitlines() if not left_out.search(line)}
        assert not unmet, " ".join(sorted(unmet))
        assert code in {0, 1}, f"exit code {code}"
        notes.append(f"{text.count('requires')} packages that the environment leaves out were not judged")

    def test_imports(self, modules):
        """vllm-tpu-w4a16: the installed modules import with the packages of the base's day."""
        modules.require_imports(["vllm", "tokamax", *MODULES])

    def test_upstream_tests(self, modules, notes):
        """vllm-tpu-w4a16: upstream's own tests of the modules pass."""
        check_tests(modules, notes)


class TestExperts:
    """The folder that replaces a package with the one of an upstream commit."""

    folder = ROOT / "images" / EXPERTS

    def test_packages(self, modules, notes):
        """vllm-tpu-w4a16-experts: the index has each nightly of tokamax by its hash."""
        pins = pins_of(self.folder / "tokamax.txt")
        for pin in pins:
            install(modules, self.folder / "tokamax.txt", only=pin)
        notes.append(f"{len(pins)} packages")

    def test_commit(self, modules):
        """vllm-tpu-w4a16-experts: upstream's commit has the class, and pins a nightly of tokamax with a known hash."""
        text = (self.folder / "Dockerfile").read_text(encoding="utf-8")
        checkout = modules.folder / "upstream"
        fetch(checkout, re.findall(r"^ARG COMMIT=(\w+)$", text, re.MULTILINE)[0])
        looked_for, path = re.findall(r"grep --quiet '([^']+)' /tmp/upstream/(\S+)", text)[0]
        assert looked_for in (checkout / path).read_text(encoding="utf-8"), f"{path} has no {looked_for}"
        pin = re.findall(r"^tokamax==\S+", (checkout / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]
        assert pin in pins_of(self.folder / "tokamax.txt"), f"tokamax.txt has no {pin}"
        install(modules, self.folder / "tokamax.txt", only=pin)

    def test_imports(self, modules):
        """vllm-tpu-w4a16-experts: the replaced modules import with the packages of the base's day."""
        checkout = modules.folder / "upstream"
        if not (checkout / "tpu_inference").is_dir():
            pytest.skip("upstream's commit is not here")
        for name in ("tpu_inference", "tests"):
            shutil.copytree(checkout / name, modules.folder / name)
        modules.require_imports(["tokamax", *MODULES])

    def test_upstream_tests(self, modules, notes):
        """vllm-tpu-w4a16-experts: upstream's own tests of the modules pass."""
        check_tests(modules, notes)


def check_tests(modules, notes):
    """Require that the tests pass that can run here, and note how many cannot."""
    counts = run_tests(modules, TESTS)
    assert counts["passed"] > 0, "no test passed"
    notes.append(f"{counts['passed']} tests")
    notes += [f"{counts[what]} were not judged, because they need {what}" for what in NEEDS if counts[what]]


def fetch(checkout, commit):
    """Fetch the commit as the Dockerfile does. Skips the test if upstream's repository cannot be reached."""
    checkout.mkdir()
    steps = (
        ("init", "--quiet"),
        ("fetch", "--quiet", "--depth=1", UPSTREAM, commit),
        ("checkout", "--quiet", "--detach", "FETCH_HEAD"),
    )
    for step in steps:
        quiet = {"GIT_TERMINAL_PROMPT": "0"}
        try:
            done = run(["git", *step], folder=checkout, limit_s=FETCH_LIMIT_S, environment=quiet)
        except TimeoutExpired:
            pytest.skip(f"{UPSTREAM} did not answer within {FETCH_LIMIT_S} s")
        if "unable to access" in done.stderr:
            pytest.skip(f"{UPSTREAM} cannot be reached here")
        check_success(done)
    found = run(["git", "rev-parse", "HEAD"], folder=checkout).stdout.strip()
    assert found == commit, f"upstream gave {found} instead of {commit}"


def install(modules, requirements, *, only=""):
    """Install pinned packages alone into the folder, as the Dockerfile does. `only` is one NAME==VERSION of the file."""
    lines = [line for line in requirements.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    chosen = modules.folder / "chosen.txt"
    chosen.write_text("\n".join(line for line in lines if not only or line.startswith(f"{only} ")), encoding="utf-8")
    options = ("--quiet", f"--python={modules.python}", "--no-deps", "--require-hashes", f"--target={modules.folder}")
    check_success(run([environment.find_uv(), "pip", "install", *options, "--requirement", str(chosen)], limit_s=600))


def pins_of(requirements):
    """Return NAME==VERSION of each line."""
    return re.findall(r"^\S+==\S+", requirements.read_text(encoding="utf-8"), re.MULTILINE)


def checked(folder):
    """Return the distributions whose requirements the Dockerfile checks."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    return re.findall(r"check\.py ([a-z -]+)$", text, re.MULTILINE)[-1].split()


def check_success(done):
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 0, " ".join(lines[-3:]) if lines else f"exit code {done.returncode}"
