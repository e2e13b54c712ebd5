"""The table of flags follows from the syntax of vLLM's sources; nothing of the archive is run."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from dev.authors.vllm_flags import flags_of, main

ENGINE = """
raise RuntimeError("this must not run")
class EngineArgs:
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="x")
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--names", **model_kwargs["names"])
        group.add_argument("--eager", **{**model_kwargs["eager"], "default": None})
        group.add_argument("--hf-token", **model_kwargs["hf_token"])
        group.add_argument("--inner-config", **model_kwargs["inner"])
        backend = model_kwargs["backend"]
        backend["type"] = str
        group.add_argument("--backend", **backend)
        group.add_argument("--off", action="store_true")
        group.add_argument("--old", action=DeprecatedAction)
        group.add_argument("--gdn", choices=["a", "b"])
        group.add_argument("--seed", **model_kwargs["seed"])
        group.add_argument("--share", **model_kwargs["share"])
        group.add_argument("--max-num-batched-tokens", **model_kwargs["max_num_batched_tokens"])
        group.add_argument("--rank", "-r", type=int)
        group.add_argument("--either", **model_kwargs["either"])
        own = model_kwargs["own"]
        own["type"] = parse_own
        group.add_argument("--own", **own)
        group.add_argument("--load-format", **model_kwargs["load_format"])
        group.add_argument("--attention-backend", **model_kwargs["attention"])
        group.add_argument("--structured-outputs-config", **model_kwargs["inner"])
        parser.add_argument("--tool-call-parser", type=str)

    def _compute_kwargs(cls):
        readable = {"max_num_batched_tokens", "bytes"}

class AsyncEngineArgs(EngineArgs):
    def add_cli_args(parser):
        parser.add_argument("--enable-log", action=argparse.BooleanOptionalAction)
"""
CONFIG = """
Kind = Literal["x", "y"]
Backend: TypeAlias = Literal["auto", Kind]

@config
class Inner:
    size: int = 1

@config
class ModelConfig:
    quantization: str | None = None
    dtype: Literal["auto", "half"] | str = "auto"
    names: list[str] = field()
    eager: bool = False
    hf_token: bool | str | None = None
    inner: Inner = field()
    backend: Annotated[Backend | None, "text"] = None
    seed: int = 0
    share: float | None = None
    max_num_batched_tokens: int | None = None
    either: int | str = 0
    own: int = 0
    load_format: str | LoadFormats = "auto"
    attention: AttentionBackendEnum | None = None

StructuredOutputsBackend = Literal["auto", "xgrammar"]
"""
SERVER = """
class BaseFrontendArgs:
    chat_template: str | None = None
    port: int = 8000
    allowed_origins: list[str] = field()

    def customize(cls, kwargs):
        del kwargs["allowed_origins"]["nargs"]

class FrontendArgs(BaseFrontendArgs):
    api_key: list[str] | None = None

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
"""
REGISTRIES = {
    "vllm/model_executor/model_loader/__init__.py": 'LoadFormats = Literal["safetensors", "auto"]',
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("f", "C"), "gemma4": ("g", "D")}',
    "vllm/v1/attention/backends/registry.py": 'class AttentionBackendEnum(Enum):\n    TRITON = "a"\n    FLASH = "b"',
    "vllm/transformers_utils/chat_templates/b.jinja": "{{ not Python }}",
    "examples/a.jinja": "{{ not Python }}",
}
MODULES = {
    **REGISTRIES,
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/config/model.py": CONFIG,
    "vllm/entrypoints/launchers/cli_args.py": SERVER,
}
LINES = [
    "--allowed-origins value @Frontend",
    "--api-key values @Frontend",
    "--attention-backend value FLASH|TRITON|AUTO @x",
    "--backend value auto|x|y|None @x",
    "--chat-template value b.jinja|examples/a.jinja @Frontend",
    "--dtype value @x",
    "--eager toggle @x",
    "--either value @x",
    "--enable-log toggle",
    "--gdn value a|b @x",
    "--headless switch",
    "--hf-token optional @x",
    "--inner-config value @x",
    "--load-format value auto|safetensors @x",
    "--max-num-batched-tokens value <size?> @x",
    "--names values @x",
    "--off switch @x",
    "--old value @x",
    "--own value @x",
    "--port value <int> @Frontend",
    "--quantization -q value @x",
    "--rank -r value <int> @x",
    "--seed value <int> @x",
    "--share value <float?> @x",
    "--structured-outputs-config value @x",
    "--structured-outputs-config.backend value auto|xgrammar @x",
    "--tool-call-parser value gemma4|hermes",
]


def test_kinds_choices_and_short_forms_follow_from_the_syntax():
    assert flags_of(MODULES) == LINES


def archived(folder: Path, version: str, modules: dict[str, str]) -> str:
    """Return the path of a source archive."""
    path = folder / f"vllm-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in modules.items():
            member = tarfile.TarInfo(f"vllm-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return str(path)


def test_one_command_puts_releases_into_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = tmp_path / "flags.json"
    rows = {"--old value": "9.8.6", "--gone value @x": "9.8.7", "--headless toggle": "9.8.6-9.8.6"}
    given = {"source": "s", "releases": "9.8.6 9.8.7", "others": "1.0", "removed": {"--a": "1 |  | b"}, "flags": rows}
    table.write_text(json.dumps(given))
    newer = MODULES | {"vllm/config/model.py": CONFIG.replace('["x", "y"]', '["x", "z"]')}
    assert main([archived(tmp_path, "9.8.7", MODULES), archived(tmp_path, "9.10.0", newer)], table) == 0
    written = json.loads(table.read_text(encoding="utf-8"))
    assert {**written, "flags": {}} == {**given, "releases": "9.8.6 9.8.7 9.10.0", "flags": {}}
    changed = {"--backend value auto|x|y|None @x", "--old value @x", "--attention-backend value FLASH|TRITON|AUTO @x"}
    lines = {*LINES} - changed
    assert written["flags"] == dict.fromkeys(lines, "9.8.7") | {
        "--backend value None|auto|x|y@9.8.7-9.8.7|z@9.10.0 @x": "9.8.7",
        "--attention-backend value AUTO|FLASH|TRITON @x": "9.8.7",
        "--headless toggle": "9.8.6-9.8.6",
        "--old value": "9.8.6-9.8.6",
        "--old value @x": "9.8.7",
    }
    assert main([archived(tmp_path, "9.9.0", {**MODULES, "vllm/engine/arg_utils.py": ""})], table) == 2
    assert "lacks" in capsys.readouterr().err, "the table cannot show a gap"
    assert main([archived(tmp_path, "9.8.7", MODULES)], table) == 0
    assert json.loads(table.read_text(encoding="utf-8")) == written


def test_an_archive_of_something_else_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "vllm-1.2.3.tar.gz").write_bytes(b"nothing")
    with tarfile.open(tmp_path / "vllm-1.2.5.tar.gz", "w:gz"):
        pass
    for name in ("numpy-1.2.3.tar.gz", "vllm-1.2.3.tar.gz", "vllm-1.2.4.tar.gz", "vllm-1.2.5.tar.gz"):
        assert main([str(tmp_path / name)], tmp_path / "flags.json") == 2
        assert capsys.readouterr().err.count("\n") == 1
