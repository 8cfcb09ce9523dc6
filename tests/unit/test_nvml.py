"""The driver and its GPUs, with a stand-in for NVIDIA's binding."""

import pytest

from wheelmill.arch import Arch, Gpu
from wheelmill.nvml import Driver, read_driver, spelled


class Refusal(Exception):  # noqa: N818 - stands for NVMLError
    """What NVML raises."""


class Binding:
    """A machine with two GPUs; `breaks` names the function that fails."""

    NVMLError = Refusal

    def __init__(self, breaks: str = "") -> None:
        self.breaks, self.open = breaks, False

    def __getattr__(self, name: str) -> object:
        if name == self.breaks:

            def fail(*_: object) -> object:
                raise Refusal("Driver Not Loaded")

            return fail
        return {
            "nvmlInit": lambda: setattr(self, "open", True),
            "nvmlShutdown": lambda: setattr(self, "open", False),
            "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda index: ("NVIDIA B200", "NVIDIA RTX PRO 6000")[index],
            "nvmlDeviceGetCudaComputeCapability": lambda index: ((10, 0), (12, 0))[index],
        }[name]


def test_every_gpu_is_named_with_its_capability() -> None:
    """Driver, the newest CUDA it runs, names and capabilities; NVML is closed again."""
    binding = Binding()

    assert read_driver(binding) == Driver(
        version="580.65.06",
        cuda="13.0",
        gpus=(
            Gpu(name="NVIDIA B200", capability=Arch.parse("10.0")),
            Gpu(name="NVIDIA RTX PRO 6000", capability=Arch.parse("12.0")),
        ),
    )
    assert not binding.open


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_what_nvml_refuses_is_an_answer(function: str) -> None:
    """No library, no driver, a GPU that fell off the bus: the reason, and no error."""
    binding = Binding(breaks=function)

    assert read_driver(binding) == Driver(problem="Driver Not Loaded")
    assert not binding.open


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13000, "13.0"), (11040, "11.4")])
def test_cuda_as_nvml_counts_it(number: int, text: str) -> None:
    """A thousand for the major release, ten for the minor."""
    assert spelled(number) == text
