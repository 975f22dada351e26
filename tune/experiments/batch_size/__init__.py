"""How large a batch memory holds, and what an epoch of each takes."""
