"""A Hugging Face hub: which repositories exist, what their files hold, and how the hub's API answers."""
