"""Running experiments: the training loop, many runs as one, run folders, processes."""
