"""A worker's own metrics: a collector of plain figures, and which figures each pool shows."""
