from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_no_measurement_of_a_command_reads_a_clock_that_can_be_set():
    """The name of a folder is the only wall time."""
    readings = [
        (path.name, text)
        for room in ("bench", "smoke")
        for path in (SCRIPTS / room).glob("*.py")
        for text in path.read_text().splitlines()
        if "time.time(" in text or ".now(" in text
    ]
    folder = (
        '    out = Path(RESULTS) / re.sub(r"[^A-Za-z0-9.-]+", "-", server) / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"'
    )
    assert readings == [("measuring.py", folder)]
