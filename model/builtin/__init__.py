"""The text that is always there: English sentences with their Spanish, made by rule."""
