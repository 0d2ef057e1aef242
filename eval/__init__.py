"""Voted evaluation: predict, vote, score, ladder, submission, comparison.

Import the parts (``from eval.vote import rank_candidates``): ``import eval`` hides the builtin.
"""
