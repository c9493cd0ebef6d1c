"""PSGD with Kronecker products of triangular factors: the update schedule, the factors, their products."""
