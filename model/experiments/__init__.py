"""What experiments train and measure, and no search does: their models, timers and counts."""
