"""Broken files for every reader: ``python -m tests.fuzz`` for as long as one likes.

A reader returns what is valid or raises its documented error, in one sentence. Anything else is a
finding: another exception, a hang, much memory.
"""
