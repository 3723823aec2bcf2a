"""Fast versions of hot layers: Triton on CUDA devices, each with a twin in plain torch that gives the same numbers.

A function here looks at its tensors and takes the kernel where it can run, else the twin. Imports compile nothing.
"""
