"""vLLM as judge: the configurations of drawn stacks, made by vLLM itself."""
