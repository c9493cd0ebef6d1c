"""One idea of an update rule per file, to be joined by `optim.chain`."""
