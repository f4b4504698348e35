"""The worker that computes with PyTorch; only a child process imports what is in here."""
