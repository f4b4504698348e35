"""Text: what turns messages into tokens and tokens into text.  Knows nothing of requests."""
