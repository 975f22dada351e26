"""Large batches at equal samples."""
