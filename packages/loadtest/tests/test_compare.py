"""Comparisons of planted sweeps: the metrics before and after, their ratio, and the exit codes of the command."""

import json

import pytest

from loadtest.__main__ import main
from loadtest.compare import compare_folders
from loadtest.errors import SweepError
from loadtest.tests.test_reports import folder, result

POINT = "8 users, 256 in, 32 out"


def repeated(*slower, levels=(8,), **more):
    """Loads with a repeat for each factor of the times."""
    return [result(level, 256, slower=s, repeat=n, **more) for level in levels for n, s in enumerate(slower)]


def test_a_metric_is_the_mean_of_its_repeats_and_judged_in_its_own_direction(tmp_path):
    before = folder(tmp_path / "a", repeated(0.9, 1.1, levels=(4, 16)))
    after = folder(tmp_path / "b", repeated(1.2, 1.4, levels=(4, 16)))
    comparison = compare_folders(before, after, threshold=0.05)
    assert [change.point for change in comparison.changes] == ["4 users, 256 in, 32 out"] * 3 + [
        "16 users, 256 in, 32 out"
    ] * 3
    throughput, ttft, tpot = comparison.changes[:3]
    assert (ttft.metric, tpot.metric) == ("median TTFT", "mean TPOT")
    assert (ttft.ratio, tpot.ratio) == (pytest.approx(1.3), pytest.approx(1.3))
    assert ttft.before == pytest.approx((before_ms(before, 0) + before_ms(before, 1)) / 2)
    assert throughput.ratio == pytest.approx((1 / 1.2 + 1 / 1.4) / (1 / 0.9 + 1 / 1.1))
    assert {change.verdict for change in comparison.changes} == {"worse"}
    back = compare_folders(after, before, threshold=0.05)
    assert {change.verdict for change in back.changes} == {"better"}
    assert {change.verdict for change in compare_folders(before, after, threshold=0.5).changes} == {"same"}


def before_ms(path, row):
    return json.loads((path / "results.jsonl").read_text().splitlines()[row])["median_ttft_ms"]


def test_latencies_are_those_of_the_steady_windows(tmp_path):
    steady = {"start_s": 0.0, "end_s": 9.0, "median_ttft_ms": 40.0}
    first = folder(tmp_path / "a", [result(8, 256) | {"steady": steady}])
    second = folder(tmp_path / "b", [result(8, 256) | {"steady": steady | {"median_ttft_ms": 50.0}}])
    _, ttft, _ = compare_folders(first, second, threshold=0.05).changes
    assert (ttft.before, ttft.after, ttft.ratio) == (40.0, 50.0, 1.25)


SHARED = result(8, 256)
SHARED["point"]["traffic"] = "shared prefix 50%"
DIFFERENCES = {
    "failures": ([result(8, 256, failed=16)], {}, f"{POINT}: 20.0% of the requests failed, up from 0.0%", f"- **{POINT}: 20.0%"),
    "differences": ([result(8, 256)], {"model": "other"}, "model was org/<m> before and is other after", "> Not the same load: model was"),
    "missing": ([SHARED], {}, POINT, "**Nothing was compared: "),
    "invalid": ([result(8, 256, valid=False)], {}, POINT, "**Nothing was compared: "),
}  # fmt: skip
"""By the field of the comparison that has it: results and run.json after, what the field says, and the Markdown."""


@pytest.mark.parametrize("field", DIFFERENCES)
def test_what_differs_besides_the_times_is_named(tmp_path, capsys, field):
    results, run, said, markdown = DIFFERENCES[field]
    before, after = folder(tmp_path / "a", [result(8, 256)]), folder(tmp_path / "b", results, run=run)
    comparison = compare_folders(before, after, threshold=0.05)
    assert getattr(comparison, field) == (said,)
    assert comparison.worse == (field == "failures")
    assert comparison.compared_nothing == (field in {"missing", "invalid"})
    assert main(["compare", str(before), str(after)]) == (field != "differences")
    assert markdown in capsys.readouterr().out


def test_a_comparison_is_a_gate(tmp_path, capsys, subtests):
    """Exit codes without and with --gate, and words of the Markdown after its title."""

    def sweep(name, slower=1.0, levels=(8, 64), **more):
        return folder(tmp_path / name, repeated(slower, levels=levels, **more))

    base, less, other = sweep("base"), sweep("less", 1.001, (8,)), sweep("other", 1.0, (4,))
    cases = {
        "same": (sweep("same", 1.001), 0, 0, ["**0 worse, 0 better, 6 compared; threshold 5%.**"]),
        "better": (sweep("better", 0.8), 0, 0, ["**0 worse, 6 better, 6 compared; threshold 5%.**"]),
        "worse": (sweep("worse", 1.2), 1, 1, ["**6 worse, 0 better, 6 compared; threshold 5%.**", "1.20 | **worse** |"]),
        "a point less": (less, 0, 2, ["3 compared, 1 point missing;", f"- Missing in {less}: 64 users, 256 in, 32 out"]),
        "another load": (other, 1, 2, [f"**Nothing was compared: {base} and {other} have no common point"]),
        "all invalid": (sweep("invalid", valid=False), 1, 2, ["**Nothing was compared: ", f"- Invalid: {POINT}\n"]),
    }  # fmt: skip
    for name, (after, code, gate, words) in cases.items():
        with subtests.test(name):
            assert main(["compare", str(base), str(after)]) == code
            printed = capsys.readouterr().out
            assert [part for part in words if part not in printed] == []
            assert main(["compare", str(base), str(after), "--gate", "--json"]) == gate
            found = json.loads(capsys.readouterr().out)
            assert found["verdict"] == {0: name, 1: "worse", 2: "cannot tell"}[gate]
            assert found["worse"] is (gate == 1)
            assert found["compared"] == len(found["changes"])


def test_words_of_a_server_become_no_link_and_no_mention(tmp_path, capsys):
    words = (
        "[click](javascript:alert(1)) ![x](http://x/y) [a][b] @everyone <img src=x>, https://x/ www.x.y, vllm@sha256:0"
    )
    folder(tmp_path / "a", [result(1, 16)])
    folder(tmp_path / "b", [result(1, 16)], run={"model": words})
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    text = capsys.readouterr().out
    assert text.count("click") == 1
    assert [
        mark for mark in ("](javascript", "](http", "[a][b]", " @everyone", "<img", "://", "www.") if mark in text
    ] == []
    assert "vllm@sha256:0" in text


def test_a_folder_without_results_is_refused_by_its_name(tmp_path):
    with pytest.raises(SweepError, match="no-results"):
        compare_folders(tmp_path / "no-results", tmp_path / "other", threshold=0.05)
