"""Numerical checks of the formulas in the notes, in float64 against automatic differentiation."""
