"""A small real torch extension: two CUDA units and one C++ unit; TORCH_CUDA_ARCH_LIST is its only arch knob."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    ext_modules=[
        CUDAExtension(
            "torch_cuda_ext._C",
            ["csrc/ops.cpp", "csrc/axpy.cu", "csrc/square.cu"],
            extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O2"]},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
