"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

from gemma_serving.stacks.program import main

main()
