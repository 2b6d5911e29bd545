"""Fused kernels behind the losses; each proves itself against its eager definition in the tests."""
