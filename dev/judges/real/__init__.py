"""Real software as judge of the parts that the local cloud simulates: Docker, gcsfuse, vLLM, the provider plugins (`make -C dev/judges real`)."""
