"""Hierarchical recurrent reasoning with DeepLoop residual scaling; knows tokens, not ARC."""
