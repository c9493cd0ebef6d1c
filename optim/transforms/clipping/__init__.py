"""Limits of gradients, of updates and of the parameters themselves."""
