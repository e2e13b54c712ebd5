# pyright: basic, reportMissingImports=false
# ruff: noqa: PLC0415, S106 - the packages are vLLM's, and take seconds to load; tokens of a tokenizer are not secrets
"""Write a tiny random Gemma 4 and its tokenizer to a folder. Run by the Python of vLLM's environment.

`python checkpoint.py FOLDER TEXT...`: the tokenizer is trained on the words of the text files, so each word is one token with and
without a space before it, as in Gemma's tokenizer.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 2048
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
"""Their ids are their positions. A response that ends with special tokens ends with id 1."""
MOST_WORDS = 500
REPEATS = 50
"""Repetitions of each word in the training text, so it becomes one token."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}"
    "{{ part.text }}{% endfor %}{% endif %}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
SEED = 4


def words_of(files: Sequence[str]) -> list[str]:
    """Return the most frequent short words of the files."""
    counted: Counter[str] = Counter()
    for file in files:
        counted.update(re.findall(r"\b[a-z]{1,8}\b", Path(file).read_text(encoding="utf-8")))
    return [word for word, _ in counted.most_common(MOST_WORDS)]


def write_tokenizer(folder: str, words: Sequence[str]) -> None:
    """Train a byte-level BPE and write it in the format of transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([line for word in words for line in (word, f" {word}")] * REPEATS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL[4:]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def write_model(folder: str) -> None:
    """Write random weights of a Gemma 4 text model: six layers, one of them with full attention."""
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(SEED)
    config = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        global_head_dim=64,
        sliding_window=512,
        hidden_size_per_layer_input=16,
        num_kv_shared_layers=0,
        final_logit_softcapping=30.0,
        max_position_embeddings=8192,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    model = Gemma4ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


if __name__ == "__main__":
    write_tokenizer(sys.argv[1], words_of(sys.argv[2:]))
    write_model(sys.argv[1])
