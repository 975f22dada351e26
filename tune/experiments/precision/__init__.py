"""One configuration in each precision."""
