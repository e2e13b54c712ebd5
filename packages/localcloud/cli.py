"""The commands of `python -m localcloud`: a cloud for one command, for a shell or for other terminals."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from localcloud import environment
from localcloud.plugins import serve as serve_providers
from localcloud.running.shims import OPERATOR_TOKEN, install
from localcloud.server.app import DEFAULT_PROJECT, DEFAULT_SPEED, OpenCloud, Options, open_cloud
from localcloud.shell import SIGNALS, run_child, start_of
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.oauth import login_file
from localcloud.world.scenario import BUILT_IN, DEFAULT_WORLD, ScenarioError
from localcloud.world.scenario import load as load_scenario
from localcloud.world.state import PRIVATE_UMASK, StateError, StateLock, describe, description, join_command, running

PROGRAM = "localcloud" if Path(sys.argv[0]).name == "localcloud" else "python -m localcloud"
"""Command that started this process: the installed one, or the module."""
EXIT_REFUSED = 2
MODEL_SERVER = "model-server"
"""Command that `localcloud.__main__` runs without loading the cloud."""
_INTERRUPTED = 130
_LOGIN_LIFE_S = 365 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A running cloud with its provider plugins, and the environment variables for it. `umask` is the umask that this process started with."""

    cloud: OpenCloud
    real_gcp: bool
    variables: dict[str, str]
    umask: int


class InvalidOptionsError(Exception):
    """The command line is invalid. The message is one sentence."""


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return the exit code."""
    own, command = _split(list(arguments))
    try:
        return _follow(_options(own), command)
    except (InvalidOptionsError, StateError, ScenarioError) as error:
        print(f"localcloud: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _options(own: list[str]) -> argparse.Namespace:
    if own[:1] == ["try"]:
        raise InvalidOptionsError("`try` has ended. Run examples/one-evening.sh (docs/one-evening.md) instead.")
    return _parser().parse_args(own)


def _follow(options: argparse.Namespace, command: list[str]) -> int:
    if options.what == "run" and not command:
        raise InvalidOptionsError(f"No command to run. Usage: {PROGRAM} run [options] -- CMD...")
    if options.what != "run" and command:
        raise InvalidOptionsError(
            f"{options.what} does not take a command, but got: {' '.join(command)}. Use `run` instead."
        )
    if options.what == "shell":
        return asyncio.run(_shell(options))
    if options.what == "env":
        return _env(options)
    if options.what == "types":
        return _types()
    return asyncio.run(_run(options, command) if options.what == "run" else _serve(options))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the command line at `--`: own arguments, and the command."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run a simulated Google Cloud on this machine.",
        epilog=f"Pages named docs/... in messages are in {_pages()}.",
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="run|shell|serve|env|types|model-server")
    run = commands.add_parser(
        "run",
        help="start a cloud, run a command in its environment, stop the cloud",
        usage=f"{PROGRAM} run [options] -- CMD...",
    )
    shell = commands.add_parser(
        "shell", help="start a cloud, or join the one that runs, and start your own shell in its environment"
    )
    serve = commands.add_parser("serve", help="start a cloud and keep it running until Ctrl-C")
    kept = Path(".localcloud")
    where_installed = "real if the engine has its plugin, otherwise standin"
    for command, state, providers in ((run, None, "standin"), (shell, kept, None), (serve, kept, None)):
        command.add_argument(
            "--providers",
            choices=("standin", "real"),
            default=providers,
            help=f"Pulumi provider plugins: stand-ins, or the installed pulumi-gcp (default: {providers or where_installed})",
        )
        command.add_argument(
            "--speed",
            type=_positive,
            default=DEFAULT_SPEED,
            help=f"simulated seconds per real second (default: {DEFAULT_SPEED:g})",
        )
        command.add_argument(
            "--scenario",
            type=Path,
            default=Path(DEFAULT_WORLD),
            help=f"YAML or JSON file with capacity, quota, durations and faults, or a built-in scenario: {', '.join(BUILT_IN)} (default: {DEFAULT_WORLD})",
        )
        command.add_argument("--project", help=f"project id (default: GOOGLE_CLOUD_PROJECT, then {DEFAULT_PROJECT})")
        command.add_argument(
            "--port",
            type=int,
            default=0,
            help="API port (default: the port of the last run on the same state, then any free port)",
        )
        command.add_argument(
            "--state",
            type=Path,
            default=state,
            help=f"folder for state between runs (default: {state or 'a temporary folder, removed on exit'})",
        )
    env = commands.add_parser("env", help="print the environment of a cloud started with `serve`")
    env.add_argument("--state", type=Path, default=kept, help="state folder of that cloud (default: .localcloud)")
    env.add_argument("--json", action="store_true", help="print one JSON object instead of export lines")
    commands.add_parser("types", help="list the resource types of pulumi-gcp that the stand-in creates")
    commands.add_parser(MODEL_SERVER, help="run the simulated vLLM server alone: a model and options of `vllm serve`")
    return parser


def _pages() -> str:
    """Return the location of the pages, from the metadata of the installed distribution."""
    from importlib import metadata  # noqa: PLC0415 - for the help alone

    try:
        urls = metadata.metadata("localcloud-google").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return "this repository"
    return next((url.partition(", ")[2] for url in urls if url.startswith("Repository, ")), "its repository")


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return value


def _env(options: argparse.Namespace) -> int:
    known = description(options.state.resolve())
    found = environment.in_shell(known["environment"], known["commands"])
    print(json.dumps(found, indent=1) if options.json else environment.exports(found))
    return 0


def _types() -> int:
    from localcloud.plugins.overlay import OVERLAYS  # noqa: PLC0415 - other commands should not pay for it

    print(*sorted(OVERLAYS), sep="\n")
    return 0


async def _run(options: argparse.Namespace, command: list[str]) -> int:
    with contextlib.ExitStack() as stack:
        state = options.state or Path(
            stack.enter_context(TemporaryDirectory(prefix="localcloud-", ignore_cleanup_errors=True))
        )
        async with _opened(state.resolve(), options) as opened:
            print(_notice(opened), file=sys.stderr, flush=True)
            return await run_child(
                command, {**environment.inherited_variables(), **opened.variables}, umask=opened.umask
            )


async def _shell(options: argparse.Namespace) -> int:
    state = options.state.resolve()
    known = running(state)
    if known is not None:
        umask = os.umask(PRIVATE_UMASK)
        print(
            f"localcloud: this shell uses the local cloud that runs on {state}, with the options of its start. Exit the "
            "shell to leave it; the cloud keeps running.",
            file=sys.stderr,
            flush=True,
        )
        return await _own_shell(state, environment.in_shell(known["environment"], known["commands"]), umask)
    async with _opened(state, options) as opened:
        print(_notice(opened), file=sys.stderr)
        print(f"State: {state}. Exit the shell to stop the cloud; the state stays.", file=sys.stderr, flush=True)
        return await _own_shell(state, opened.variables, opened.umask)


async def _own_shell(state: Path, variables: dict[str, str], umask: int) -> int:
    """Run the user's shell with the variables of a cloud, and return its exit code."""
    inherited = environment.inherited_variables()
    start = start_of(os.environ.get("SHELL", "/bin/sh"), state, variables)
    return await run_child(start.command, {**inherited, **variables, **start.variables}, umask=umask)


async def _serve(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    state = options.state.resolve()
    async with _opened(state, options) as opened:
        print(_notice(opened), file=sys.stderr)
        print(f"To use it in another terminal:  {join_command(state)}", file=sys.stderr)
        print(f"Admin API: {opened.cloud.base_url}/admin/   State: {state}   Stop: Ctrl-C", file=sys.stderr, flush=True)
        await stop.wait()
    return 0


def _notice(opened: Opened) -> str:
    plugin = "the real pulumi-gcp" if opened.real_gcp else "the stand-in of pulumi-gcp"
    return (
        f"localcloud: everything here is SIMULATED on this machine ({opened.cloud.base_url}, with {plugin}); no Google Cloud account is used and "
        "nothing is billed."
    )


def _runtimes(cloud: Cloud) -> Runtimes:
    from localcloud.running.simulated import simulated_runtimes  # noqa: PLC0415 - when a cloud starts

    return simulated_runtimes(cloud)


@contextlib.asynccontextmanager
async def _opened(state: Path, options: argparse.Namespace) -> AsyncGenerator[Opened]:
    """Lock the state, open the cloud and the stand-ins, and close them in reverse order."""
    scenario = load_scenario(options.scenario)
    project = (
        options.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("GOOGLE_PROJECT") or DEFAULT_PROJECT
    )
    real_gcp = environment.has_real_gcp() if options.providers is None else options.providers == "real"
    umask = os.umask(PRIVATE_UMASK)
    try:
        lock = StateLock.take(state)
    except StateError:
        os.umask(umask)
        raise
    try:
        (state / "pulumi").mkdir(exist_ok=True)
        wanted = Options(project=project, speed=options.speed, scenario=scenario, port=options.port)
        try:
            cloud = await open_cloud(state, wanted, _runtimes)
        except OSError as error:
            raise InvalidOptionsError(
                f"Cannot listen on port {options.port} of 127.0.0.1: {error.strerror}. Pass another --port."
            ) from None
        try:
            token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator, lifetime_s=_LOGIN_LIFE_S)
            # The user's `gcloud` acts as the owner, regardless of the credentials in the shell.
            commands = install(state / "bin", environment={OPERATOR_TOKEN: token})
            # A default provider without gcp:project reads its project from here, not from the shell that started the cloud.
            known = {**os.environ, "GOOGLE_PROJECT": project, "GOOGLE_CLOUD_PROJECT": project}
            login, credentials = token, cloud.credentials
            if scenario.iam.login_is_person:
                tokens, person = cloud.cloud.tokens, cloud.cloud.login
                login = tokens.issue_access_token(person, lifetime_s=_LOGIN_LIFE_S)
                credentials = login_file(state / "login.json", tokens.issue_refresh_token(person))
            async with serve_providers(cloud.base_url, token=login, environment=known, speed=options.speed) as ports:
                found = environment.variables(
                    base_url=cloud.base_url,
                    state=state,
                    project=project,
                    speed=options.speed,
                    access_token=login,
                    operator_token=token,
                    credentials=credentials,
                    commands=commands,
                    debug_providers=ports.docker_alone if real_gcp else ports.debug_providers,
                    real_gcp=real_gcp,
                )
                written = {"url": cloud.base_url, "environment": found, "commands": str(commands)}
                with contextlib.closing(describe(state, written)):
                    yield Opened(cloud=cloud, real_gcp=real_gcp, variables=found, umask=umask)
        finally:
            await cloud.close()
    finally:
        lock.release()
        os.umask(umask)
