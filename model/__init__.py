"""All that trains one trial: text, tokenizers, batches, models and their training; imports no Ray."""
