"""State that earlier deployments wrote, of this stack and of other stacks, read before any resource is declared."""
