"""What the operators do on CUDA: Triton kernels, compiled at their first use.

Nothing outside imports this package; an operator does, at its first call with CUDA tensors. In
Triton's interpreter (``TRITON_INTERPRET=1``) the same functions run on CPU tensors.
"""
