"""What is known and not computed: checkpoints, images, flags, prices, constants of the runtimes."""
