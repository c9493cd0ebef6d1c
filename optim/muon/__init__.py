"""Muon and its kin: updates of matrices whose singular values are all near 1."""
