"""Losses, metrics and weights of a batch: what is compared, and how it is weighted."""
