"""What computes: PyTorch in a child process, or a simulated GPU."""
