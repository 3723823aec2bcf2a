"""Operations that models are built from, one file each.

A file holds the plain torch version (the definition: differentiable, traceable, for every device), the Triton version
under it where there is one, and the function that models call. `dispatch` decides which version runs;
`online_softmax` is shared by several kernels.
"""
