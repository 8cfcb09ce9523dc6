"""The NVIDIA driver and the GPUs of this machine, as NVML tells them; none of either is an answer, not an error."""

from dataclasses import dataclass
from typing import Protocol, cast

from .arch import Arch, Gpu


class Nvml(Protocol):
    """The part of NVIDIA's own binding (pynvml) that is used."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802, D102 - NVML's own names
    def nvmlShutdown(self) -> None: ...  # noqa: N802, D102
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802, D102
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802, D102
    def nvmlDeviceGetName(self, handle: object) -> str: ...  # noqa: N802, D102
    def nvmlDeviceGetCudaComputeCapability(self, handle: object) -> tuple[int, int]: ...  # noqa: N802, D102


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The driver's version, the newest CUDA it runs, and its GPUs; `problem` says why there is none."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def binding() -> Nvml:
    """Load NVIDIA's binding, which finds the driver's library when it is asked."""
    import pynvml  # noqa: PLC0415 - 70 ms that only preflight and doctor need

    return cast("Nvml", pynvml)


def read_driver(nvml: Nvml) -> Driver:
    """Ask NVML; whatever it refuses is the answer's `problem`."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    try:
        return Driver(
            version=nvml.nvmlSystemGetDriverVersion(),
            cuda=spelled(nvml.nvmlSystemGetCudaDriverVersion_v2()),
            gpus=tuple(read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
        )
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    finally:
        nvml.nvmlShutdown()


def spelled(number: int) -> str:
    """Spell a CUDA version that NVML gives as a number: 12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"


def read_gpu(nvml: Nvml, index: int) -> Gpu:
    """Ask for one GPU."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(name=nvml.nvmlDeviceGetName(handle), capability=Arch(major=major, minor=minor))
