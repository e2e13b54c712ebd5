"""The Pulumi package `gemma-serving`: components that a program in any language adds, their schema, and the provider that constructs them."""
