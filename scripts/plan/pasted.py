"""A vLLM server as people have it: a line, a script, a Dockerfile, a manifest or a compose file. Nothing of it is run."""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.settings_files import read_regular
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import find_accelerator

_MOST_BYTES: Final = 2**20
_SERVED: Final = re.compile(r"\bvllm\s+serve\b|vllm[./]entrypoints[./]openai[./]api_server")
_STARTS: Final = re.compile(rf"(?m)^.*(?:{_SERVED.pattern}|\b(?:docker|podman)\s+run\b|\brun\s+(?:deploy|update)\b).*$")
"""Lines of a script that may start a server."""
VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|[{(]([A-Za-z_]\w*)(?::?-([^{}()$]*))?[})])")
_ASSIGNED: Final = re.compile(r"(?m)^[ \t]*(?:export |readonly |local )?([A-Za-z_]\w*)=(.*)$")
_COMPUTED: Final = re.compile(r"`|\$\((?!\w+\))|\$\{\w+[^}\w:-]")
"""Parts of a value that only a shell computes."""
_ARRAY: Final = re.compile(r"(?m)^[ \t]*(?:export |declare -a |local )?(\w+)\+?=\(([^()]*)\)")
_USED_ARRAY: Final = re.compile(
    r""""?\$\(IFS=['"]?(.)[^"]*"\$\{(\w+)\[[*@]\]\}"\)"?|"?\$\{(\w+)\[@\]\}"?|\$\{(\w+)\[\*\]\}"""
)
"""An array as a text with a separator, as words, or as a text with blanks."""
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_ENDS: Final = frozenset(";&|<>\n")
"""Characters that end a command, or begin a redirection."""
_SWITCH: Final = re.compile(r"-[ditPq]+|--(?:rm|detach|interactive|tty|privileged|init|quiet|cpu-boost|async|no-.*)")
"""Options of docker and gcloud without a value."""
_OF_ENTRYPOINT: Final = re.compile(r"-|[\w.-]+/[\w.-]+$")
"""First word, a flag or a model, of a command that the entrypoint of an image takes."""
_OF_SERVICE: Final[Mapping[str, str]] = {
    "--region": "cloudRun.region",
    "--cpu": "cloudRun.cpu",
    "--memory": "cloudRun.memory",
    "--concurrency": "cloudRun.concurrency",
    "--min-instances": "cloudRun.minInstances",
    "--max-instances": "cloudRun.maxInstances",
}
"""Setting of each option of `gcloud run deploy`."""
_OF_DESCRIPTION: Final[Mapping[str, str]] = {
    "cloud.googleapis.com/location": "cloudRun.region",
    "containerConcurrency": "cloudRun.concurrency",
    "autoscaling.knative.dev/maxScale": "cloudRun.maxInstances",
    "autoscaling.knative.dev/minScale": "cloudRun.minInstances",
}
"""Setting of each label of a service that Cloud Run describes."""
_RUN_LABELS: Final = ("run.googleapis.com/accelerator", "accelerator")
_GKE: Final = "cloud.google.com/gke-"
_CLASS: Final = "cloud.google.com/compute-class"
_TPUS: Final = {"tpu-v6e-slice": "v6e", "tpu-v5-lite-podslice": "v5e", "tpu7x": "tpu7x"}
"""Generation of each label of GKE."""


@dataclass(frozen=True, kw_only=True)
class PastedServer:
    """A server as it was found."""

    words: Sequence[str]
    """Words after `vllm serve`, with the variables that the file sets."""
    image: str = ""
    accelerator: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of the container or of the script; empty for one whose value is elsewhere."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values by key of a stack, besides vLLM's."""


def pasted_server(source: Path | None, line: Sequence[str]) -> PastedServer:
    """Return the first server of a file, or that of a line. Raises PlanningError for one that cannot be read or has none."""
    name = "The line after --" if source is None else f"--from {source}"
    try:
        text = read_regular(source, _MOST_BYTES) if source else ""
        found = next(_of_text(text, source.suffix) if source else _of_words(line, {}), None)
    except (OSError, ValueError, RecursionError) as error:
        text = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        why = error.strerror if isinstance(error, OSError) else text
        raise PlanningError(f"{name} cannot be read: {why}.") from None
    if found is None:
        raise PlanningError(
            f"{name} starts no vLLM server that can be read. It needs a command with vllm serve MODEL, also in a container, a CMD, docker run or "
            "gcloud run deploy, or an image of vLLM with its arguments."
        )
    return found


def _of_text(text: str, suffix: str) -> Iterator[PastedServer]:
    if text.lstrip()[:1] in {"{", "["}:
        return _of_documents([json.loads(text)])
    if suffix in {".yaml", ".yml"} or (suffix != ".md" and re.search(r"(?m)^(?:apiVersion|kind|services|spec):", text)):
        return _of_documents(_documents(text))
    return _of_dockerfile(text) if re.search(r"(?mi)^FROM\s+\S+", text) else _of_script(text, {})


def _documents(text: str) -> Sequence[object]:
    """Return the documents of a YAML text. Raises ValueError."""
    import yaml  # noqa: PLC0415 - costs two interpreters, and a line needs none of it

    try:
        return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        why = f"it is not YAML{line}. Of a template, pass the result of helm template or kubectl kustomize"
        raise ValueError(why) from None


def _of_documents(documents: Sequence[object]) -> Iterator[PastedServer]:
    """Yield the server of each container. ConfigMaps of the file hold variables."""
    maps = [as_mapping(one.get("data")) for one in map(as_mapping, documents) if one.get("kind") == "ConfigMap"]
    shared = {name: str(value) for one in maps for name, value in one.items()}
    for document in documents:
        nodes = list(_nodes(document, set()))
        labels = {key: str(value) for node in nodes for key, value in node.items() if isinstance(value, str | int)}
        for container in nodes:
            yield from _of_container(container, labels, shared)


def _nodes(value: object, seen: set[int]) -> Iterator[Mapping[str, object]]:
    """Yield each map in a value, once: an alias is the same object."""
    node = as_mapping(value)
    inner = [*node.values(), *as_sequence(value)]
    if id(value) in seen or not inner:
        return
    seen.add(id(value))
    yield node
    for one in inner:
        yield from _nodes(one, seen)


def _of_container(
    container: Mapping[str, object], labels: Mapping[str, str], shared: Mapping[str, str]
) -> Iterator[PastedServer]:
    """Yield the server of a container of Kubernetes, Cloud Run, a compose file or a serving document."""
    command = [word for key in ("entrypoint", "command", "args") for word in _listed(container.get(key))]
    if container.get("modelCommand") == "vllmServe":  # llm-d's chart
        command = ["vllm", "serve", labels.get("uri", ""), *command]
    own = _environment(container.get("env") or container.get("environment"))
    limits = {name: str(one) for name, one in as_mapping(as_mapping(container.get("resources")).get("limits")).items()}
    is_service = any(label in labels for label in _RUN_LABELS)
    settings = {key: labels[label] for label, key in _OF_DESCRIPTION.items() if label in labels}
    settings |= {f"cloudRun.{name}": limits[name].removesuffix("000m") for name in ("cpu", "memory") if name in limits}
    known = {**shared, **{name: value for name, value in own.items() if value}}
    for found in _of_image(command, str(container.get("image") or ""), known):
        place = _accelerator(labels, limits)
        yield replace(found, variables=own, accelerator=place, settings=settings if is_service else {})


def _listed(value: object) -> Sequence[str]:
    """Return a command of a file, a list or one text, as words."""
    if isinstance(value, str):
        return _words(" ".join(value.split("\n")))
    return [one if isinstance(one, str) else json.dumps(one, default=str) for one in as_sequence(value)]


def _environment(value: object) -> dict[str, str]:
    """Return the variables of a container by name."""
    found = _pairs([one for one in as_sequence(value) if isinstance(one, str)])
    for entry in map(as_mapping, as_sequence(value)):
        found |= {str(entry["name"]): str(entry.get("value", ""))} if "name" in entry else {}
    return found | {name: str(one) for name, one in as_mapping(value).items()}


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of NAME=VALUE by name."""
    return {name: value for name, _, value in (one.partition("=") for one in texts)}


def _accelerator(labels: Mapping[str, str], limits: Mapping[str, str]) -> str:
    """Return the accelerator that the labels of a node name; empty without one."""
    count = limits.get("nvidia.com/gpu", limits.get("google.com/tpu", "1"))
    tpu = _TPUS.get(labels.get(f"{_GKE}tpu-accelerator", ""))
    if tpu:
        return f"{tpu}-{math.prod(map(int, re.findall('[0-9]+', labels.get(f'{_GKE}tpu-topology', count))))}"
    named = (labels[one] for one in (f"{_GKE}accelerator", *_RUN_LABELS) if one in labels)
    name = next(named, "")
    return _several(name, count) if name else _in_class(labels.get(_CLASS, ""), count)


def _in_class(name: str, count: str) -> str:
    """Return the accelerator whose name is part of a ComputeClass's, such as tpu-v6e-2x4 or gpu-h100-80gb-high-x1; empty without one."""
    words = name.split("-")
    spans = ("-".join(words[first:last]) for first in range(len(words)) for last in range(len(words), first, -1))
    found = (one for span in spans for one in (find_accelerator(span), find_accelerator(f"{span}-{count}")) if one)
    return next((one.name if one.is_tpu else _several(one.name, count) for one in found), "")


def _several(name: str, count: str) -> str:
    """Return the name of a machine with several GPUs, such as L4x4."""
    found = find_accelerator(name) if name else None
    return f"{found.name}x{count}" if found is not None and count.isdecimal() and int(count) > 1 else name


def _of_image(command: Sequence[str], image: str, variables: Mapping[str, str]) -> Iterator[PastedServer]:
    """Yield the server of a container's command. The entrypoint of an image of vLLM is the server."""
    found, words = next(_of_words(command, variables), None), _resolved(command, variables)
    if found is None and "vllm" in image.lower() and words and _OF_ENTRYPOINT.match(words[0]):
        found = PastedServer(words=words)
    if found is not None:
        yield replace(found, image=found.image or image)


def _of_words(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[PastedServer]:
    """Yield the server that a command starts, also inside docker, gcloud or a shell."""
    for at, word in enumerate(words):
        name, rest = word.rpartition("/")[2], words[at + 1 :]
        if name in {"docker", "podman"} and "run" in rest[:2]:
            yield from _of_docker(rest[rest.index("run") + 1 :], variables)
        elif name == "gcloud" and "run" in rest and {"deploy", "update"} & {*rest}:
            yield from _of_gcloud(rest[rest.index("run") + 1 :], variables)
        elif (name == "vllm" and rest[:1] == ["serve"]) or (_SERVED.fullmatch(word.removesuffix(".py"))):
            yield PastedServer(words=_resolved(rest[1:] if name == "vllm" else rest, variables))
        elif re.search(r"\s", word) and _SERVED.search(word):
            yield from _of_script(word, variables)
        else:
            continue
        return


def _of_docker(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[PastedServer]:
    """Yield the server of the words after `docker run`."""
    options, rest = _options(words, ends_at_word=True)
    own = _pairs([pair for name, pair in options if name in {"-e", "--env"}])
    entry = [value for name, value in options if name == "--entrypoint" and value]
    for found in _of_image([*entry, *rest[1:]], _text(rest[0], variables), {**variables, **own}) if rest else ():
        yield replace(found, variables={**found.variables, **own})


def _of_gcloud(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[PastedServer]:
    """Yield the server of the words after `gcloud run`."""
    options, after = _options(words, ends_at_word=False)
    given = {name: _text(value, variables) for name, value in options}
    own = _pairs([pair for name, value in options if "-env-vars" in name for pair in _items(value)])
    own |= _pairs(
        [f"{pair.partition('=')[0]}=" for name, value in options if "-secrets" in name for pair in _items(value)]
    )
    command = [*_items(given.get("--command", "")), *_items(given.get("--args", "")), *after]
    for found in _of_image(command, given.get("--image", ""), {**variables, **own}):
        settings = {key: given[name] for name, key in _OF_SERVICE.items() if given.get(name) and "$" not in given[name]}
        place = _several(given.get("--gpu-type", ""), given.get("--gpu", "1"))
        yield replace(found, variables={**found.variables, **own}, accelerator=place, settings=settings)


def _items(text: str) -> list[str]:
    """Return the items of a list of gcloud, whose separator may be stated as `^|^`."""
    stated = re.match(r"\^([^^]+)\^", text)
    items = text[stated.end() :].split(stated[1]) if stated else text.split(",")
    return [item for item in items if item]


def _options(words: Sequence[str], *, ends_at_word: bool) -> tuple[list[tuple[str, str]], Sequence[str]]:
    """Return options with their values, and the words from the first that is none, or after `--`."""
    found: list[tuple[str, str]] = []
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name == "--":
            break
        if not name.startswith("-"):
            if ends_at_word:
                return found, [f"{name}{equals}{value}", *left]
            continue
        if not equals and left and not _SWITCH.fullmatch(name) and (name == "--args" or left[0][:1] != "-"):
            value = left.pop(0)
        found.append((name, value))
    return found, left


def _of_dockerfile(text: str) -> Iterator[PastedServer]:
    """Yield the server of a Dockerfile's last ENTRYPOINT and CMD."""
    found = re.findall(r"(?mi)^[ \t]*(FROM|ENV|ARG|ENTRYPOINT|CMD)[ \t]+(.*)$", _COMMENT.sub("", _joined(text)))
    last = {name.upper(): text.strip() for name, text in found}
    variables: dict[str, str] = {}
    for name, rest in found:
        if name.upper() in {"ENV", "ARG"}:
            pairs = _words(rest) if "=" in rest else ["=".join(rest.split(None, 1))]
            variables |= {name: _text(value, variables) for name, value in _pairs(pairs).items()}
    parts = [last[name] for name in ("ENTRYPOINT", "CMD") if name in last]
    command = [
        word for part in parts for word in (_listed(json.loads(part)) if part[:1] == "[" else ["sh", f"{part} "])
    ]
    for server in _of_image(command, _text(last.get("FROM", "").partition(" ")[0], variables), variables):
        yield replace(server, variables=variables)


def _of_script(text: str, variables: Mapping[str, str]) -> Iterator[PastedServer]:
    """Yield the server of each line of a shell script that starts one."""
    text = _with_arrays(_COMMENT.sub("", _joined(text)))
    known = dict(variables)
    for name, value in _ASSIGNED.findall(text):
        if not _COMPUTED.search(value):
            known[name] = _text(next(iter(_words(value)), ""), known)
    own = {name: value for name, value in known.items() if name not in variables}
    for line in _STARTS.finditer(text):
        for found in (one for words in _commands(text[line.start() :]) for one in _of_words(words, known)):
            yield replace(found, variables={**own, **found.variables})


def _with_arrays(text: str) -> str:
    """Return a script with the words of its arrays where it uses them."""
    arrays: dict[str, Sequence[str]] = {}
    for name, body in _ARRAY.findall(text):
        arrays[name] = [*arrays.get(name, []), *_words(" ".join(body.split("\n")))]

    def spelled(found: re.Match[str]) -> str:
        words = arrays.get(found[2] or found[3] or found[4])
        if words is None or found[3]:
            return found[0] if words is None else shlex.join(words)
        return shlex.quote(found[1].join(words)) if found[1] else " ".join(words)

    return _USED_ARRAY.sub(spelled, text)


def _joined(text: str) -> str:
    """Return a text with each line that ends in a backslash and its next as one."""
    return re.sub(r"[ \t]*\\\r?\n", " ", text)


def _words(text: str) -> Sequence[str]:
    return next(_commands(text), ())


def _commands(text: str) -> Iterator[Sequence[str]]:
    """Yield the words of each command on the first line of a text, as a shell parts them. A quoted text may have several lines."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="".join(_ENDS))
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if not word or not {*word} <= _ENDS:
                words.append(word)
                continue
            if words:
                yield words[:-1] if word[0] in "<>" and words[-1] in {"1", "2"} else words
            words = []
            if "\n" in word:
                return
    except ValueError:  # a quote without its end
        pass
    if words:
        yield words


def _resolved(words: Sequence[str], variables: Mapping[str, str]) -> Sequence[str]:
    return [_text(word, variables) for word in words]


def _text(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the values of the variables that are known."""
    return VARIABLE.sub(lambda one: variables.get(one[1] or one[2]) or one[3] or one[0], text) if "$" in text else text
