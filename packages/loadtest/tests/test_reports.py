import csv
import json
import os
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.reports import charts
from loadtest.reports.facts import sweep_facts
from loadtest.reports.report import report_charts, write_reports
from loadtest.reports.table import NOTHING, columns_of
from loadtest.served_model import Watch
from loadtest.store import read_results, read_run

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
CHROMIUM = next(
    (
        found
        for name in (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
        if name and (found := shutil.which(name))
    ),
    None,
)
NO_CHROMIUM = (
    "no Chromium, so that the page is not opened in a browser; to enable this test install one (Debian: `apt-get install chromium`)"
    " or set CHROMIUM to the path of one"
)


def result(level, tokens, *, slower=1.0, valid=True, failed=0, requests=64, output=32, repeat=0, wobble=0.05):
    """A point as a server would give it whose latency grows with load; `slower` stretches every time."""
    ttfts = [
        slower * (0.05 + tokens / 20_000 + level / 2_000) * (1 + wobble * ((i * 37) % 11 - 5) / 5)
        for i in range(requests)
    ]
    tpot = slower * (0.01 + level / 50_000)
    e2els = [ttft + (output - 1) * tpot for ttft in ttfts]
    mean_e2el = sum(e2els) / requests
    ordered = sorted(ttfts)
    speed = level * output / mean_e2el
    latencies = {
        f"{key}_{name}_ms": value * 1000
        for name, values in (("ttft", ordered), ("tpot", [tpot]), ("itl", [tpot]), ("e2el", sorted(e2els)))
        for key, value in (
            ("mean", sum(values) / len(values)),
            ("median", values[len(values) // 2]),
            ("std", 0.0),
            ("p90", values[int(0.9 * len(values))]),
            ("p95", values[int(0.95 * len(values))]),
            ("p99", values[-1]),
        )
    }
    return {
        "point": {
            "mode": "closed", "level": level, "input_tokens": tokens, "output_tokens": output, "requests": requests, "duration_s": None,
            "seed": 1, "repeat": repeat, "requested_input_tokens": None, "key": f"closed-c{level}-i{tokens}-o{output}-n{repeat}",
        },
        "date": "2026-01-01T00:00:00+00:00", "model_id": "org/<m>", "simulated": None, "valid": valid, "completed": requests, "failed": failed,
        "duration": 1.0, "request_throughput": level / mean_e2el, "request_goodput": None, "output_throughput": speed,
        "total_token_throughput": 2 * speed, "max_concurrent_requests": level,
        "total_input_tokens": requests * tokens, "total_output_tokens": requests * output, **latencies,
        "usd_per_million_output_tokens": 400 / speed, "ttfts": ttfts, "e2els": e2els, "output_lens": [output] * requests,
        "input_lens": [tokens] * requests, "start_times": [0.0] * requests, "errors_by_kind": {"http_503": failed} if failed else {},
        "error_examples": {"http_503": "<script>alert(1)</script>"} if failed else {}, "server": Watch().figures(),
        "client": {"workers": 1, "cpu_share_max": 0.1, "lag_p99_ms": 0.2, "send_late_p99_ms": 0.0},
        "invalid_reasons": [] if valid else ["the client's loop was late"], "notes": [],
    }  # fmt: skip


def folder(path, results, run=None):
    path.mkdir()
    (path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results))
    (path / "run.json").write_text(
        json.dumps({"model": "org/<m>", "url": "http://h", "seed": 1, "usd_per_hour": 1.42, **(run or {})})
    )
    return path


def grid():
    return [
        result(level, tokens, valid=(level, tokens) != (256, 4096), failed=3 if (level, tokens) == (64, 4096) else 0)
        for tokens in (16, 256, 4096)
        for level in (1, 8, 64, 256)
    ]


CHARTS = 5 + 2 + 3 * 3
"""Five charts over the load; the first tokens of two more shapes; distributions of three shapes."""


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.ids = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids |= {value for name, value in attrs if name == "id"}
        self.links += [
            value
            for name, value in attrs
            if name in {"src", "href", "srcset", "data", "action", "xlink:href"} and value is not None
        ]


def test_the_page_and_each_chart_have_no_script_and_load_nothing(tmp_path):
    written = write_reports(folder(tmp_path / "r", grid()))
    drawings = [path for path in written if path.suffix == ".svg"]
    assert len(drawings) == CHARTS
    assert sorted(path.name for path in (tmp_path / "r" / "charts").iterdir()) == sorted(path.name for path in drawings)
    for path in (tmp_path / "r" / "report.html", *drawings):
        text = path.read_text()
        page = Page()
        page.feed(text)
        assert "script" not in page.tags
        assert [link for link in page.links if not link.startswith(("#", "data:,"))] == []
        assert not re.search(r"@import|url\(|<\?xml", text)
        assert set(re.findall(r"\w*://[\w./]*", text)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
            "http://h",
        }
        assert write_reports(tmp_path / "r")
        assert path.read_text() == text  # neither a date nor a random name
    assert page.tags.count("svg") == 1


def test_without_the_extra_the_report_has_no_charts_and_a_sentence_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(charts, "find_spec", {}.get)
    folder(tmp_path / "r", grid())
    assert main(["report", str(tmp_path / "r")]) == 0
    out, err = capsys.readouterr()
    assert [Path(line).name for line in out.splitlines()] == ["report.html", "summary.csv"]
    assert "the package pygal is not installed" in err
    assert f"-m pip install '{charts.REQUIREMENT}'`" in err
    assert tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["charts"] == [charts.REQUIREMENT]


def test_the_csv_has_a_row_for_each_point_with_the_numbers_of_its_result(tmp_path):
    steady = {"start_s": 0.0, "end_s": 9.0, "output_throughput": 7.5, "first_wave": {"requests": 1}}
    results = [result(1, 16, failed=2), result(8, 16, valid=False) | {"simulated": "vllm", "steady": steady}]
    write_reports(folder(tmp_path / "r", results))
    with (tmp_path / "r" / "summary.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    wanted = {
        "point": "1 user, 16 in, 32 out", "mode": "closed", "level": "1", "input_tokens": "16", "valid": "True", "simulated": "False",
        "failed": "2", "steady_output_throughput": "",
    }  # fmt: skip
    assert wanted.items() <= first.items()
    assert {"valid": "False", "simulated": "True", "steady_output_throughput": "7.5"}.items() <= second.items()
    assert float(second["p99_ttft_ms"]) == results[1]["p99_ttft_ms"]


def test_words_of_a_server_cannot_become_markup(tmp_path):
    write_reports(folder(tmp_path / "r", grid()))
    html = (tmp_path / "r" / "report.html").read_text()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert "org/&lt;m&gt;" in html


def test_a_shape_of_which_nothing_is_valid_is_never_in_front(tmp_path):
    """The limits of the page: what is folded away is for whoever looks for it."""
    results = [result(level, tokens, valid=tokens == 4096) for tokens in (16, 4096) for level in (1, 8)]
    shown = [chart for group in report_charts({}, results) if not group.folded for chart in group.charts]
    for chart in shown:
        marks = [mark for line in chart.series for mark in line.marks]
        assert any(mark.valid for mark in marks), chart.title


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page_without_errors_and_without_scrolling_sideways(tmp_path, width, scheme):
    """Headless Chromium takes no window narrower than 500 px, so that the page is measured in a frame of the width."""
    write_reports(folder(tmp_path / "r", grid()))
    probe = tmp_path / "r" / "probe.html"
    frame = (
        f'<!doctype html><body style="margin:0"><iframe src="report.html" style="border:0;width:{width}px;height:900px"></iframe>'
        "<script>onload=()=>{const f=document.querySelector('iframe'),d=f.contentDocument.documentElement;"
        "d.querySelectorAll('details').forEach(e=>e.open=true);"
        "const box=e=>e.getBoundingClientRect(),out=[...d.querySelectorAll('svg text')].filter(t=>{const a=box(t),b=box(t.closest('svg'));"
        "return a.left<b.left-1||a.right>b.right+1||a.top<b.top-1||a.bottom>b.bottom+1}).map(t=>t.textContent);"
        "document.title='width '+d.scrollWidth+' of '+d.clientWidth+' charts '+d.querySelectorAll('svg').length"
        "+' background '+f.contentWindow.getComputedStyle(d.querySelector('body')).backgroundColor+' cut ['+out.join('|')+']'}</script></body>"
    )
    probe.write_text(frame)
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
        f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
        f"--user-data-dir={tmp_path / 'p'}",
    ]
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags,
            f"--window-size={max(500, width)},1000",
            "--virtual-time-budget=3000",
            "--dump-dom",
            probe.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"width (\d+) of (\d+) charts (\d+) background rgb\((\d+),.* cut \[(.*?)\]</title>", done.stdout)
    assert found, done.stderr[-500:]
    assert int(found[1]) <= int(found[2])
    assert int(found[3]) == CHARTS
    assert (int(found[4]) > 200) == (scheme == "light")
    assert not found[5], f"texts that leave their chart: {found[5]}"
    assert "CONSOLE" not in done.stderr


def test_failures_and_points_that_were_left_out_are_said_first(tmp_path):
    reasons = ["2 of 66 requests failed (3.0%), more than --max-failed 0.01", "the client's loop was late"]
    results = [
        result(1, 16, failed=2, valid=False) | {"invalid_reasons": reasons},
        result(8, 16) | {"notes": ["over-saturated"]},
    ]
    left_out = [{"key": "closed-c64-i16-o32-n0", "reason": "the server is saturated at a lower load"}]
    path = folder(tmp_path / "r", results, run={"max_failed": 0.01, "left_out": left_out})
    write_reports(path)
    facts = sweep_facts(read_run(path), read_results(path))
    notices = facts.notices
    assert [notice.text for notice in notices] == [
        "NOT VALID: 1 of 2 points. Do not use their metrics.",
        "1.5% of the requests failed: 2 of 130, at most 3.0% of a point.",
        "1 point was not measured: closed-c64-i16-o32-n0: the server is saturated at a lower load.",
    ]
    assert notices[0].reasons == (f"1 user, 16 in, 32 out: {'; '.join(reasons)}",)
    assert notices[1].reasons == ("2 x http_503, for example: <script>alert(1)</script>",)
    assert facts.notes == ("8 users, 16 in, 32 out: over-saturated",)
    html = (path / "report.html").read_text()
    assert all(html.index("</h1>") < html.index(notice.text) < html.index("<svg") for notice in notices)


def test_the_table_has_the_time_to_first_token_with_its_lateness_and_the_servers_own():
    known = result(4, 16) | {
        "ttft_uncertainty": {"lag_mean_ms": 0.44, "server_mean_ms": 20.1, "first_event_mean_ms": 20.36}
    }
    older = result(8, 16)
    cells = {column.title: [column.text(row) for row in (known, older)] for column in columns_of([known, older])}
    assert cells["TTFT mean ms"] == [f"{known['mean_ttft_ms']:,.1f} ± 0.4", f"{older['mean_ttft_ms']:,.1f}"]
    assert cells["above server's ms"] == ["+0.3", NOTHING]
    assert "above server's ms" not in {column.title for column in columns_of([older])}
