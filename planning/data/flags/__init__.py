"""Tables of the flags of `vllm serve`, one module per release. authors/vllm_flags.py writes them; planning.question.server_flags reads them."""
