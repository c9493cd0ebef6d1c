"""The machinery under every optimizer: the step loop, batches, options, checkpoints."""
