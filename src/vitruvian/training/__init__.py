"""Training: configuration, optimizer, weight averages, checkpoints, logs and the loop. Needs the extra `train`."""
