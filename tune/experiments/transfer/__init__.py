"""One learning rate for all shapes."""
