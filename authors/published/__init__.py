"""Check that everything named by the stacks and the tables is still published: checkpoints on the hub, images in their registry."""
