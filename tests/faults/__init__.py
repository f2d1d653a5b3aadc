"""Faults on purpose: ``python -m tests.faults`` disturbs small experiments and looks at the rest.

Each trial starts the command itself, does one thing to it, gives the same command again, and then
asks: is finished work lost, is a number wrong, was what the user saw a clear sentence?
"""
