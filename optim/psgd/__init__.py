"""PSGD with Kronecker products of triangular factors."""
