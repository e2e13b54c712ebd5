"""The planner's TPU rows as vLLM's own server and Google's compiler judge them: the rows, their answers, and the page."""
