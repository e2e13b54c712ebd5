"""The table of flags follows from the syntax of vLLM's sources; nothing of the archive is run."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from authors.vllm_flags import flags_of, main

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
MODULES = {
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/config/model.py": CONFIG,
    "vllm/entrypoints/launchers/cli_args.py": SERVER,
}
LINES = [
    "--allowed-origins value",
    "--api-key values",
    "--backend value auto|x|y|None",
    "--chat-template value",
    "--dtype value",
    "--eager toggle",
    "--either value",
    "--enable-log toggle",
    "--gdn value a|b",
    "--headless switch",
    "--hf-token optional",
    "--inner-config value",
    "--max-num-batched-tokens value <size?>",
    "--names values",
    "--off switch",
    "--old value",
    "--own value",
    "--port value <int>",
    "--quantization -q value",
    "--rank -r value <int>",
    "--seed value <int>",
    "--share value <float?>",
]


def test_kinds_choices_and_short_forms_follow_from_the_syntax():
    assert flags_of(MODULES) == LINES


def test_one_command_makes_the_table_of_a_release(tmp_path: Path):
    path = tmp_path / "vllm-9.8.7.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in MODULES.items():
            member = tarfile.TarInfo(f"vllm-9.8.7/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    assert main([str(path)], tmp_path) == 0
    assert json.loads((tmp_path / "9.8.7.json").read_text(encoding="utf-8"))["flags"] == LINES


def test_an_archive_of_something_else_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "vllm-1.2.3.tar.gz").write_bytes(b"nothing")
    with tarfile.open(tmp_path / "vllm-1.2.5.tar.gz", "w:gz"):
        pass
    for name in ("numpy-1.2.3.tar.gz", "vllm-1.2.3.tar.gz", "vllm-1.2.4.tar.gz", "vllm-1.2.5.tar.gz"):
        assert main([str(tmp_path / name)], tmp_path) == 2
        assert capsys.readouterr().err.count("\n") == 1
