"""Previews of all stacks, and the comment on a pull request that shows them."""
