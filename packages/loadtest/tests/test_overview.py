"""Many sweeps in one table: the best load of each, and never two workloads beside each other."""

import json
from dataclasses import asdict

import pytest

from loadtest.__main__ import main
from loadtest.errors import SweepError
from loadtest.overview import overview_of
from loadtest.reports.markdown import overview_markdown
from loadtest.tests.test_reports import folder, result

LEVELS = (1, 8, 64)


def sweep(path, slower=1.0, *, levels=LEVELS, tokens=256, run=None, **more):
    found = [{**result(level, tokens, slower=slower), "p95_ttft_ms": 1000.0 + level, **more} for level in levels]
    return folder(path, found, run={"roofline": {"accelerator": "v6e-1"}, **(run or {})})


def rows(text):
    """The cells of each line of the tables, without the headings."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| model", "| ---"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_one_workload_is_one_table_with_the_fastest_sweep_first(tmp_path):
    slow = sweep(tmp_path / "slow", 2.0, run={"stack": "tpu-v6e1", "model": "org/slow"})
    fast = sweep(tmp_path / "fast", run={"roofline": None, "model": "org/fast"})
    text = overview_markdown(overview_of([slow, fast]))
    first, second = rows(text)
    assert (first[0], first[1], first[2], first[3]) == ("org/fast", "unknown", "\N{EN DASH}", "64 (highest)")
    assert (second[0], second[1], second[2]) == ("org/slow", "v6e-1", "tpu-v6e1")
    best = result(64, 256)
    assert first[4] == f"{best['output_throughput']:,.0f}"
    assert first[5] == f"{best['mean_ttft_ms']:,.0f}"
    assert first[6] == "1,064"
    assert first[7] == f"{best['mean_tpot_ms']:,.1f}"
    assert first[8] == f"{best['usd_per_million_output_tokens']:,.2f}"
    assert first[9] == "yes"
    assert "comparable" not in text
    assert "different workloads" not in text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"tokens": 4096}, "4,096 tokens in"),
        ({"run": {"endpoint": "/v1/completions"}}, "/v1/completions"),
        ({"run": {"extra_body": {"temperature": 1}}}, "with temperature 1"),
        ({"run": {"traffic": {"prefix_share": 0.5, "turns": 1}}}, "prefix_share 0.5"),
        ({"run": {"slo": {"ttft_s": 1.0}}, "request_goodput": 64.0}, "limits ttft 1.0 s for 99% of the requests"),
    ],
)
def test_another_workload_is_named_as_not_comparable(tmp_path, other, words):
    same = [sweep(tmp_path / name) for name in "ab"]
    text = overview_markdown(overview_of([*same, sweep(tmp_path / "other", **other)]))
    assert "The sweeps have 2 different workloads. Compare rows of one table only." in text
    (line,) = [line for line in text.splitlines() if "Not comparable: " in line]
    assert str(tmp_path / "other") in line
    assert words in line
    tables = text.split("#### ")[1:]
    assert [len(rows(table)) for table in tables] == [2, 1]


def test_the_best_load_is_within_the_limits(tmp_path):
    results = [{**result(level, 256), "good_share": good} for level, good in ((1, 1.0), (8, 1.0), (64, 0.5))]
    (table,) = overview_of([folder(tmp_path / "a", results, run={"slo": {"ttft_s": 1.0}})])
    assert (table.rows[0].load, table.rows[0].is_highest, table.has_limits) == ("8", False, True)
    none = [{**each, "good_share": 0.0} for each in results]
    text = overview_markdown(overview_of([folder(tmp_path / "b", none, run={"slo": {"ttft_s": 1.0}})]))
    assert rows(text)[0][3:9] == ["none within the limits", *["\N{EN DASH}"] * 5]


def test_an_invalid_load_is_never_the_best_and_an_invalid_sweep_says_so(tmp_path):
    mixed = folder(tmp_path / "mixed", [result(1, 256), result(8, 256), result(64, 256, valid=False)])
    bad = folder(tmp_path / "bad", [result(64, 256, valid=False)])
    text = overview_markdown(overview_of([bad, mixed]))
    first, second = rows(text)
    assert (first[3], first[9]) == ("8", "yes, 2 of 3 loads")
    assert second[9] == "NO"
    assert f"**NOT VALID: {tmp_path / 'bad'}. Do not use their metrics.**" in text


def test_a_simulated_server_is_named_and_text_of_a_server_is_no_markup(tmp_path):
    one = sweep(tmp_path / "a", run={"model": "<b>|x\x1b]52;c;QQ==\x07"}, simulated="vllm")
    overview = overview_of([one, sweep(tmp_path / "b")])
    assert f"Simulated server: {one}. Results do not" in overview_markdown(overview)
    assert "&lt;b>\\|x" in overview_markdown(overview)
    assert not {"\x1b", "\x07"} & {*overview_markdown(overview)}
    assert json.loads(json.dumps([asdict(table) for table in overview]))[0]["rows"][0]["machine"] == "v6e-1"


def test_the_command_takes_one_folder_or_many(tmp_path, capsys):
    folders = [str(sweep(tmp_path / name)) for name in "ab"]
    copy = tmp_path / "all.md"
    assert main(["report", *folders, "--out", str(copy)]) == 0
    printed = capsys.readouterr().out
    assert copy.read_text() == printed
    assert len(rows(printed)) == 2
    assert main(["report", *folders, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["tables"][0]["rows"]) == 2
    assert main(["report", folders[0]]) == 0
    assert (tmp_path / "a" / "report.html").is_file()
    for words, sentence in (
        ([], "No folder named."),
        ([folders[0], "--out", str(copy)], "--out needs several folders."),
        ([folders[0], folders[0]], "A folder is named twice."),
        ([folders[0], str(tmp_path / "none")], "Cannot read"),
    ):
        assert main(["report", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_an_empty_sweep_is_refused(tmp_path):
    with pytest.raises(SweepError, match="no complete point"):
        overview_of([folder(tmp_path / "a", []), sweep(tmp_path / "b")])
