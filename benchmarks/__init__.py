"""Speed, memory and accuracy of the package against plain PyTorch: ``python -m benchmarks``.

Files are named after ``fspool/functional``; each makes the cases of one operator. A
:class:`~benchmarks.case.Case` is a set of variants on the same fresh inputs: accuracy, timing and
memory all take it, so that what is timed is what was checked.
"""
