"""Transforms that several optimizers share; `optim.chain` joins them."""
