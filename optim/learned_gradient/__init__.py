"""LearnedGradient: a gradient preconditioned by matrices that are learned from the loss."""
