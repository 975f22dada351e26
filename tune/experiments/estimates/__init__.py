"""FLOPs and memory on paper against counted."""
