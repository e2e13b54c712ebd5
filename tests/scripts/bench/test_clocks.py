from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_no_measurement_of_a_command_reads_a_clock_that_can_be_set():
    """Wall time are the start of the server, which `/metrics` states in wall time only."""
    readings = [
        (path.name, text)
        for room in ("bench", "smoke")
        for path in (SCRIPTS / room).glob("*.py")
        for text in path.read_text().splitlines()
        if "time.time(" in text or ".now(" in text
    ]
    assert sorted(readings) == [
        ("checks_basic.py", "    start_s = time.time() - began_s if began_s is not None else 0.0"),
        (  # the name of a folder
            "run.py",
            '    out = Path(RESULTS) / re.sub(r"[^A-Za-z0-9.-]+", "-", server) / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"',
        ),
    ]
