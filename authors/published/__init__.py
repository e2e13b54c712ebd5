"""Whether everything that the stacks and the tables name is still published: checkpoints on the hub, images in their registry."""
