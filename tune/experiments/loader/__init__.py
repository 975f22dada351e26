"""What a running loop waits for its batches."""
