"""Ways to train nanoGPT."""
