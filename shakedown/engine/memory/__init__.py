"""The memory calculator: what a configuration takes, whether it fits, and what to change if it does not."""
