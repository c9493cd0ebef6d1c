"""Adafactor as in T5X: rules on parameter names say what is factored."""
