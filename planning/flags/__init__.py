"""Tables of the flags of `vllm serve`, one module per release. tools/vllm_flags.py writes them; planning.server_flags reads them."""
