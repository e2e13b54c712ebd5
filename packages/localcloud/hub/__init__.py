"""Simulated Hugging Face hub: its repositories, their file contents, and the responses of the hub's API."""
