"""What must hold for every deployment, whatever its settings."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.settings.question import Question
from tests.laws import examples

laws = settings(
    max_examples=examples(test=15, part=60, night=2000), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@laws
@given(
    st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=12),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
    st.sampled_from([0, 8]),
)
def test_a_checkpoint_has_two_bytes_for_each_parameter(layers, kv_heads, tied, experts):
    hidden, heads, dim, mlp, vocab = 512, 16, 64, 1_024, 10_000
    config = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": len(layers), "layer_types": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab}
    config |= {"num_experts": experts, "num_experts_per_tok": 2, "tie_word_embeddings": tied, "sliding_window": 128}
    attention = 2 * hidden * dim * (heads + kv_heads)
    feed_forward = 3 * hidden * mlp * max(experts, 1) + hidden * experts
    layer = attention + feed_forward + 2 * hidden
    params = len(layers) * layer + vocab * hidden * (1 if tied else 2) + hidden
    spec = model_from_config({"model_type": "drawn", **config}, name="drawn")
    sizes = weights_of(resolve(Question().changed(model="drawn", accelerator="H200", model_spec=spec)))
    assert sizes.checkpoint == 2 * params
    assert sizes.device - sizes.tables == 2 * params
