"""DataParallel, DistributedDataParallel, and the levers of the latter."""
