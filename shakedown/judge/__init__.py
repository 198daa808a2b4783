"""Pure arithmetic on records: what users felt, and whether that kept the bargain."""
