"""A small real torch CUDA extension, for tests: axpy and square, on CPU and GPU."""

import torch  # its libraries must be loaded before ours

from . import _C  # noqa: F401 - registers the operators

axpy = torch.ops.torch_cuda_ext.axpy
square = torch.ops.torch_cuda_ext.square
