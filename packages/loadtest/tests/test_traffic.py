"""What loads consist of: lengths, images, and the rows of files, without a server."""

import base64
import io
import json
import random
import statistics
import tracemalloc

import pytest
from PIL import Image

from loadtest.__main__ import main
from loadtest.errors import SweepError
from loadtest.traffic.dataset import RowReader, parse_row, sample_text, scan_dataset, spans
from loadtest.traffic.lengths import parse_lengths
from loadtest.traffic.makers import SyntheticSource, image_parts
from loadtest.traffic.media_files import ImageSize, parse_image_size
from loadtest.traffic.prompts import POOL, Calibration, Recipe
from loadtest.traffic.spec import Traffic

CALIBRATION = Calibration(source="tokenize", words=POOL, overhead_tokens=4, tokens_per_word=1.0)
SCAN = {
    "default_output_tokens": 16,
    "characters_per_token": 4.0,
    "overhead_tokens": 4,
    "max_model_len": None,
    "whole": False,
}
# The form of a file that people have, small: ShareGPT_V3_unfiltered_cleaned_split.json, with the keys that its repository documents.
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "Wie heißt das — ü?"},
            {"from": "gpt", "value": "x" * 80},
            {"from": "human", "value": "And then?"},
            {"from": "gpt", "value": "y" * 40},
        ],
    },
    {"id": "b", "conversations": [{"from": "human", "value": "Second"}, {"from": "gpt", "value": "z" * 8}]},
]


def written(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("lognormal:mean=1000,std=400", 1000, 400),
        ("uniform:min=100,max=300", 200, 58),
        ("normal:mean=500,std=50", 500, 50),
    ],
)
def test_drawn_lengths_have_the_stated_mean_and_deviation(text, mean, std):
    lengths = parse_lengths(text)
    rng = random.Random(7)  # noqa: S311 - lengths, no secret
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)
    assert statistics.stdev(drawn) == pytest.approx(std, rel=0.05)
    assert parse_lengths(lengths.text) == lengths


@pytest.mark.parametrize(
    "text", ["lognormal:mean=0.5,std=1", "uniform:min=5,max=2", "zipf:a=2", "uniform:min=5", "normal:mean=x"]
)
def test_wrong_distributions_are_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="uniform:min=100,max=2000"):
        parse_lengths(text)


def test_images_are_whole_pngs_of_the_stated_size_and_all_different():
    size = parse_image_size("100x77")
    urls = {part["image_url"]["url"] for part in image_parts(20, size, "seed")}
    assert len(urls) == 20
    for url in urls:
        image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
        image.load()
        assert (image.format, image.size) == ("PNG", (100, 77))
        assert len(image.convert("RGB").getcolors()) > 100
    with pytest.raises(ValueError, match="896x896"):
        parse_image_size("9x9")
    assert ImageSize(width=100, height=77).text == "100x77"


def test_a_row_of_a_dataset_is_a_prompt_or_messages_or_a_conversation():
    assert parse_row(b'{"prompt": "hi", "output_tokens": 7}').output_tokens == 7
    row = parse_row(
        json.dumps({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]}).encode()
    )
    assert [message["role"] for message in row.messages] == ["system", "user"]
    first = parse_row(json.dumps(SHAREGPT[0]).encode())
    assert [message["content"] for message in first.messages] == ["Wie heißt das — ü?"]
    assert first.reply_characters == 80
    assert parse_row(json.dumps(SHAREGPT[0]).encode(), whole=True).user_texts == ["Wie heißt das — ü?", "And then?"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{broken", "row 2 is not JSON"),
        ("[1]", "row 2 is not a JSON object"),
        ('{"text": "x"}', "row 2 has no prompt"),
        ('{"prompt": "x", "output_tokens": 0}', "row 2 has output_tokens 0"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, line, why):
    path = written(tmp_path / "d.jsonl", ['{"prompt": "fine"}', line])
    with pytest.raises(SweepError, match=why):
        scan_dataset(path, **SCAN)


@pytest.mark.parametrize("form", ["array", "lines"])
def test_sharegpt_is_read_as_an_array_and_as_lines(tmp_path, form):
    text = json.dumps(SHAREGPT, ensure_ascii=False, indent=1) if form == "array" else ""
    text = text or "\n".join(json.dumps(row, ensure_ascii=False) for row in SHAREGPT)
    path = tmp_path / "share.json"
    path.write_text(text, encoding="utf-8")
    dataset, facts = scan_dataset(path, **SCAN)
    reader = RowReader(dataset.places)
    rows = [parse_row(reader.read(number)) for number in range(2)]
    assert [row.messages[0]["content"] for row in rows] == ["Wie heißt das — ü?", "Second"]
    assert [dataset.output_tokens_of(row) for row in rows] == [20, 2]  # 80 and 8 characters at 4 a token
    assert (facts.rows, facts.replies_estimated, facts.multi_turn) == (2, 2, 0)
    assert sample_text(path).startswith("Wie heißt das — ü?")


def test_rows_that_exceed_max_model_len_are_left_out(tmp_path):
    path = written(tmp_path / "d.jsonl", [json.dumps({"prompt": "w" * size}) for size in (40, 4000, 80)])
    dataset, facts = scan_dataset(path, **(SCAN | {"max_model_len": 100}))
    assert (len(dataset.places), facts.too_long) == (2, 1)
    with pytest.raises(SweepError, match="all 3 rows are longer than max-model-len 10"):
        scan_dataset(path, **(SCAN | {"max_model_len": 10}))


def test_a_large_file_is_read_without_holding_it(tmp_path):
    path = tmp_path / "large.json"
    row = json.dumps({"conversations": [{"from": "human", "value": "word " * 800}, {"from": "gpt", "value": "x"}]})
    with path.open("w") as file:
        file.write("[" + ",".join([row] * 8000) + "]")
    assert path.stat().st_size > 30_000_000
    tracemalloc.start()
    dataset, facts = scan_dataset(path, **SCAN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (facts.rows, len(dataset.places)) == (8000, 8000)
    assert peak < 12_000_000
    assert parse_row(RowReader(dataset.places).read(7999)).characters == 4000


def test_a_json_array_that_is_cut_is_refused(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text('[{"prompt": "a"}, {"prompt": ')
    with pytest.raises(SweepError, match="is not a JSON array"):
        list(spans(path))
    with pytest.raises(SweepError, match="Cannot read"):
        list(spans(tmp_path / "none.json"))


def source(most_tokens=None, **traffic):
    recipe = Recipe(words=POOL, count=CALIBRATION.words_for(200), seed=5)
    given = Traffic(**{"image_size": ImageSize(width=64, height=64), **traffic})
    return SyntheticSource(
        recipe=recipe,
        calibration=CALIBRATION,
        correction=0,
        input_tokens=200,
        output_tokens=8,
        most_tokens=most_tokens,
        traffic=given,
    )


def test_a_share_of_each_prompt_is_the_same_and_the_rest_is_unique():
    maker = source(prefix_share=0.5).maker()
    prompts = [maker.asked(index).content.split() for index in range(50)]
    assert {len(prompt) for prompt in prompts} == {196}
    assert len({tuple(prompt[:98]) for prompt in prompts}) == 1
    assert len({tuple(prompt[98:114]) for prompt in prompts}) == 50


def test_lengths_of_a_distribution_are_clamped_to_max_model_len():
    made = source(input_lengths=parse_lengths("lognormal:mean=300,std=300"), most_tokens=256)
    lengths = [made.lengths_of(index) for index in range(500)]
    assert max(given + output for given, output in lengths) == 256
    assert min(given for given, _ in lengths) >= 1
    assert [made.lengths_of(index) for index in range(5)] == lengths[:5]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--dataset", "d", "--images", "1"], "--dataset and --images cannot be combined"),
        (["--think-time", "2"], "--think-time 2 requires --turns N"),
        (["--image-size", "64x64"], "--image-size requires --images N"),
        (["--dataset", "d", "--audio-s", "1"], "--dataset and --audio-s cannot be combined"),
        (["--adapters", "a,a"], "--adapters is 'a,a'; it must be different names, such as a,b."),
        (["--input-tokens", "zipf:a=1"], "--input-tokens is 'zipf:a=1'; it must be uniform:min=100,max=2000"),
    ],
)
def test_contradictions_are_refused_in_one_sentence(words, why, capsys, tmp_path):
    code = main(["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "o"), *words])
    assert code == 2
    assert why in capsys.readouterr().err
