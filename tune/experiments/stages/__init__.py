"""What the seconds of a training go to."""
