"""Voted evaluation: predict, vote, score, ladder, submission, comparison.

Import the parts (``from eval.vote import count_ballots``): ``import eval`` hides the builtin.
"""
