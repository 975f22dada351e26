"""One configuration on several devices."""
