"""The child process. It runs in the environment of the wheels and imports nothing of this project but `dev.judges.tpu_compiler.replaced`."""
