"""Known facts: checkpoints, images, flags, prices, constants of the runtimes."""
