"""The exercises, one module each: what its tests call, what they expect, and what a wrong answer usually means."""
