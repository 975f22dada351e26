"""The published ablation of a translator."""
