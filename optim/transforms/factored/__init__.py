"""Statistics of matrices by their rows and columns, as Adafactor keeps them."""
