"""Previews of all stacks, and the pull request comment that shows them."""
