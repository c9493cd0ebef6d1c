"""The machinery under every optimizer: the step loop, stacking, options, checkpoints."""
