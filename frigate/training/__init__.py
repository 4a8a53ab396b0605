"""Training: the loop, checkpoints, distributed training, and training on parts of a large network."""
