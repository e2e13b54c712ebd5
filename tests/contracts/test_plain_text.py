"""Text of others cannot steer a terminal, and hides nothing from a model."""

from gemma_serving.contracts.plain_text import for_model, for_terminal

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07\x1b[2J"


def test_what_steers_a_terminal_becomes_an_escape():
    assert for_terminal(f"hi {CLIPBOARD}") == "hi \\u001b]52;c;ZXZpbA==\\u0007\\u001b[2J"
    for steering in "\r\b\x7f\x9b\x00\u202e\u2066\ud800":
        assert for_terminal(steering) == f"\\u{ord(steering):04x}"


def test_languages_and_emoji_stay_readable():
    for text in (
        "a\n\tb",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f468\u200d\U0001f469",
        "1\u202f000\u00a0\u20ac",
        "\u0915\u094d\u200d\u0937",
    ):
        assert for_terminal(text) == text


def test_a_model_sees_what_a_person_cannot():
    assert for_model("a\u200bb\u3164c\U000e0101") == "a\\u200bb\\u3164c\\U000e0101"
    assert for_model(f"x{CLIPBOARD}") == for_terminal(f"x{CLIPBOARD}")
