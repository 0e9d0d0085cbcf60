"""Measuring: timing, the machine's own ceilings, and the figures that show them."""
