"""Batches: which images make up each, how they are cut, and what is replayed beside them."""
