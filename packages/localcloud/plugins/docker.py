"""Stand-in for the `docker` provider: simulated image builds and pushes.

A Docker engine is not needed, because nothing is built. A push informs the local cloud's registry that the image exists. An image's digest is
computed from the inputs of a build (context, Dockerfile, arguments, target, platform), so it changes exactly when the image does.
Deleting deletes nothing, as in the real provider.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path as File
from pathlib import PurePosixPath
from typing import Final

from localcloud.json_values import packaged, strings
from localcloud.plugins.checking import DEFAULTS_KEY, CheckReply, Failure, Naming, check
from localcloud.plugins.diffing import Detail, Difference, DiffKind
from localcloud.plugins.facts import described
from localcloud.plugins.inputs import secret_paths
from localcloud.plugins.lifecycle import CreatedResource, ReadReply
from localcloud.plugins.package_schema import package_schema
from localcloud.plugins.rest import PluginError, RestTransport, TransportReply, bearer
from localcloud.plugins.schema import Object
from localcloud.plugins.values import Path, Properties, Value, has_unknown, is_object, text_of

VERSION: Final = "5.2.0"

IMAGE: Final = "docker:index/image:Image"
_PLATFORM: Final = "linux/amd64"
_INPUTS: Final = "__inputs"
"""Key of the state under which the provider stores the inputs, to compare the next ones with."""
_UNSOLVED: Final = (
    "error reading build output: failed to solve with frontend dockerfile.v0: failed to create LLB definition"
)

_TABLES: Final = packaged("localcloud.plugins", "docker.json")
IMAGE_FIELDS: Final = described(_TABLES["image"])

_SETTINGS: Final = frozenset(strings(_TABLES, "settings"))


def _require_image(type_name: str) -> None:
    if type_name != IMAGE:
        raise PluginError(f"the local docker stand-in does not support the resource type {type_name}, only {IMAGE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Inputs of an image. `context` and `dockerfile` are paths as in the program, relative to the working directory."""

    context: str
    dockerfile: str
    args: Mapping[str, str]
    target: str
    platform: str


class DockerProvider:
    """The `docker` package."""

    name = "docker"
    version = VERSION

    def __init__(self, transport: RestTransport, *, token: str | None) -> None:
        self._pusher = _Pusher(transport=transport, token=token)

    def schema(self) -> Object:
        """Return the package's schema."""
        return package_schema(self.name, self.version, _SETTINGS, {IMAGE: IMAGE_FIELDS}, {})

    def check_config(self, news: Properties) -> tuple[Failure, ...]:
        """Accept the real provider's settings, which have no effect here, and reject others."""
        reason = "the local docker stand-in does not support this provider setting"
        return tuple(Failure(path=name, reason=f"{reason}: {name}") for name in news if name not in _SETTINGS)

    def configure(self, configuration: Properties) -> "DockerSession":
        """Start a session."""
        del configuration
        return DockerSession(pusher=self._pusher)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pusher:
    """Pushes to the registries of the local cloud."""

    transport: RestTransport
    token: str | None = field(repr=False)

    async def push(self, name: str, digest: str) -> None:
        """Store the image's digest under its name. Raise PluginError with docker's message if the registry rejects it."""
        host, _, path = name.partition("@")[0].partition("/")
        if not host.endswith("-docker.pkg.dev"):
            return
        repository, colon, tag = path.rpartition(":")
        path = f"registry/{host}/v2/{repository if colon else tag}/manifests/{tag if colon else 'latest'}"
        headers = {**bearer(self.token), "Content-Type": "application/json"}
        reply = await self.transport.send("PUT", path, {}, headers, json.dumps({"digest": digest}).encode())
        if reply.status >= HTTPStatus.BAD_REQUEST:
            raise PluginError(f"error pushing image: {_refusal(reply)}")


def _refusal(reply: TransportReply) -> str:
    """Return docker's message for a rejected push."""
    errors = json.loads(reply.text or "{}").get("errors")
    if not errors:
        return f"received unexpected HTTP status: {reply.status}"
    found = errors[0]
    return f"{str(found['code']).lower().replace('_', ' ')}: {found['message']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSession:
    """A configured provider."""

    pusher: "_Pusher" = field(repr=False)

    def check(self, type_name: str, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckReply:
        """Check inputs. An image's build gets its defaults and the digest of its context, so a changed file is a difference.

        Raises PluginError if the Dockerfile does not exist.
        """
        _require_image(type_name)
        checked = check(type_name, IMAGE_FIELDS, _without_digest(news), olds, naming)
        inputs: Properties = {name: value for name, value in checked.inputs.items() if name != DEFAULTS_KEY}
        if checked.failures or has_unknown(inputs.get("build")):
            return CheckReply(inputs=inputs, failures=checked.failures)
        build, given = _build(inputs), inputs.get("build")
        inputs["build"] = {
            **(given if is_object(given) else {}),
            "context": build.context,
            "dockerfile": build.dockerfile,
            "platform": build.platform or _PLATFORM,
            "contextDigest": context_digest(build),
        }
        return CheckReply(inputs=inputs, failures=())

    def diff(self, type_name: str, state: Properties, news: Properties) -> Difference:
        """Compare the state's inputs with new ones, by top-level property. A registry is compared by its server: logins change each time."""
        del type_name
        known = state.get(_INPUTS)
        olds = known if is_object(known) else {}
        return Difference(
            details={
                (name,): Detail(change=_kind(name in olds, name in news))
                for name in sorted({*olds, *news})
                if _differs(name, olds.get(name), news.get(name))
            },
            delete_first=False,
        )

    def preview_create(self, type_name: str, inputs: Properties) -> Properties:
        """Return the inputs. What a build would return is unknown to the engine."""
        del type_name
        return inputs

    def preview_update(self, type_name: str, state: Properties, news: Properties) -> Properties:
        """Return the new inputs, or the unchanged state if nothing changes."""
        return news if self.diff(type_name, state, news).details else state

    async def create(self, type_name: str, inputs: Properties, *, limit_s: float) -> CreatedResource:
        """Compute the digest and push the image."""
        del limit_s
        _require_image(type_name)
        digest, name = manifest_digest(_build(inputs)), text_of(inputs, "imageName")
        if inputs.get("skipPush") is not True:
            await self.pusher.push(name, digest)
        return CreatedResource(id=name, state=_image_state(inputs, digest))

    async def read(self, type_name: str, resource_id: str, inputs: Properties, state: Properties) -> ReadReply | None:
        """Return the state unchanged, as the real provider does."""
        if not inputs:
            raise PluginError(f"{type_name} {resource_id!r} cannot be imported")
        return ReadReply(created=CreatedResource(id=resource_id, state=state), inputs=inputs)

    async def update(
        self, type_name: str, resource_id: str, state: Properties, news: Properties, *, limit_s: float
    ) -> CreatedResource:
        """Build again."""
        del state
        created = await self.create(type_name, news, limit_s=limit_s)
        return CreatedResource(id=resource_id, state=created.state)

    async def delete(self, type_name: str, resource_id: str, state: Properties, *, limit_s: float) -> None:
        """Leave the image, as the real provider does."""
        del type_name, resource_id, state, limit_s

    async def invoke(self, function: str, arguments: Properties) -> Properties:
        """Raise PluginError because the package has no data sources."""
        del arguments
        raise PluginError(f"the local docker stand-in does not support the function {function}")

    def secret_paths(self, type_name: str) -> frozenset[Path]:
        """Return the paths of passwords, and of the inputs in the state, which the real provider marks as a whole."""
        del type_name
        return secret_paths(IMAGE_FIELDS) | {(_INPUTS,)}


def _kind(was: bool, is_now: bool) -> DiffKind:
    return DiffKind.UPDATE if was and is_now else DiffKind.ADD if is_now else DiffKind.DELETE


def _differs(name: str, old: Value, new: Value) -> bool:
    if name == "registry" and is_object(old) and is_object(new):
        return old.get("server") != new.get("server")
    return old != new


def _without_digest(news: Properties) -> Properties:
    build = news.get("build")
    if not is_object(build):
        return news
    return {**news, "build": {name: value for name, value in build.items() if name != "contextDigest"}}


def _build(inputs: Mapping[str, Value]) -> Build:
    given = inputs.get("build")
    build = dict(given) if is_object(given) else {}
    context = text_of(build, "context") or "."
    args = build.get("args")
    return Build(
        context=context,
        dockerfile=text_of(build, "dockerfile") or f"{context.rstrip('/')}/Dockerfile",
        args={name: str(value) for name, value in args.items()} if is_object(args) else {},
        target=text_of(build, "target"),
        platform=text_of(build, "platform"),
    )


def _image_state(inputs: Properties, digest: str) -> Properties:
    """Return the outputs of an image, and the inputs that its next diff compares with."""
    name = text_of(inputs, "imageName")
    build = _build(inputs)
    registry = inputs.get("registry")
    repository = name.partition("@")[0]
    untagged = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
    return {
        "imageName": name,
        "baseImageName": name,
        "context": build.context,
        "dockerfile": os.path.relpath(build.dockerfile, build.context),
        "platform": build.platform or _PLATFORM,
        "registryServer": text_of(registry, "server") if is_object(registry) else "",
        "repoDigest": digest if inputs.get("skipPush") is True else f"{untagged}@{digest}",
        _INPUTS: inputs,
    }


def context_digest(build: Build) -> str:
    """Return SHA-256 over the context's files (names, executable bits, contents) and the Dockerfile, without files in `.dockerignore`.

    Raises PluginError if the Dockerfile does not exist. The real provider checks nothing else before it builds.
    """
    context, dockerfile = File(build.context), File(build.dockerfile)
    if not dockerfile.is_file():
        named = json.dumps(build.dockerfile)
        missing = f"stat {build.dockerfile}: no such file or directory"
        if dockerfile.is_absolute():
            raise PluginError(f"expected a relative Dockerfile path; got {named} instead: {missing}")
        raise PluginError(f"could not open dockerfile at relative path {named}: {missing}")
    digest = hashlib.sha256()
    for path in sorted(_files(context, _rules(context))):
        file = context / path
        digest.update(f"{path}\0{'x' if os.access(file, os.X_OK) else '-'}\0".encode())
        digest.update(_content(file))
    digest.update(b"Dockerfile\0" + dockerfile.read_bytes())
    return digest.hexdigest()


def manifest_digest(build: Build) -> str:
    """Return the digest of the image of a build: the same for the same context, Dockerfile, arguments, target and platform.

    Raises PluginError as `context_digest` does, and for an invalid Dockerfile.
    """
    check_dockerfile(build)
    parts = [
        context_digest(build),
        *(f"{name}={value}" for name, value in sorted(build.args.items())),
        build.target,
        build.platform,
    ]
    return "sha256:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_dockerfile(build: Build) -> None:
    """Reject a Dockerfile that docker rejects at its first instruction. Raises PluginError."""
    for line in File(build.dockerfile).read_text(encoding="utf-8").splitlines():
        word = line.strip().partition(" ")[0].upper()
        if not word or word.startswith("#") or word == "ARG":
            continue
        if word != "FROM":
            raise PluginError(f"{_UNSOLVED}: no build stage in current context")
        return
    raise PluginError(f"{_UNSOLVED}: file with no instructions")


def _content(file: File) -> bytes:
    if file.is_symlink():
        return b"link:" + os.fsencode(file.readlink())
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            hashed.update(chunk)
    return hashed.digest()


@dataclass(frozen=True, slots=True)
class _IgnoreRule:
    """One line of a `.dockerignore`."""

    pattern: re.Pattern[str]
    keeps: bool


def _rules(context: File) -> list[_IgnoreRule]:
    file = context / ".dockerignore"
    if not file.is_file():
        return []
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    rules: list[_IgnoreRule] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        keeps = line.startswith("!")
        pattern = PurePosixPath(line.removeprefix("!").strip().strip("/")).as_posix()
        rules.append(_IgnoreRule(re.compile(_translate(pattern)), keeps))
    return rules


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern of Go's filepath.Match with `**`. It matches whole paths, and everything below a directory."""
    expression = ""
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            expression, index = expression + "(?:.*/)?", index + 3
        elif pattern.startswith("**", index):
            expression, index = expression + ".*", index + 2
        else:
            letter = pattern[index]
            expression += {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter))
            index += 1
    return rf"^{expression}(?:/.*)?$"


def _is_ignored(path: str, rules: list[_IgnoreRule]) -> bool:
    ignored = False
    for rule in rules:
        if rule.pattern.match(path):
            ignored = not rule.keeps
    return ignored


def _files(context: File, rules: list[_IgnoreRule]) -> Iterator[str]:
    """Return the paths of the context's files, relative to it. Ignored folders are skipped unless a rule includes files again."""
    may_return = any(rule.keeps for rule in rules)
    for folder, folders, names in os.walk(context):
        base = File(folder).relative_to(context).as_posix()
        prefix = "" if base == "." else f"{base}/"
        if not may_return:
            folders[:] = [name for name in folders if not _is_ignored(prefix + name, rules)]
        yield from (prefix + name for name in names if not _is_ignored(prefix + name, rules))
