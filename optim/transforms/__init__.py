"""Transforms that several optimizers share, one idea per file; `optim.chain` joins them."""
