"""One trial's worth of learning: text, tokenizers, batches, models and their training; no ray."""
