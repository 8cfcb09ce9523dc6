"""Ask an installed flash-attn hdim128-bf16-inference variant to refuse everything it lacks.

Run it inside an environment that holds the wheel: `python flash_attn_variant_probe.py`. No GPU is needed:
a refusal must come before the first CUDA call. Prints one JSON line per check, exits 1 if one failed.
"""

import json
import sys
from collections.abc import Callable, Iterator

import flash_attn
import flash_attn_2_cuda as extension
import torch
from flash_attn import flash_attn_interface as interface

VARIANT = "hdim128-bf16-inference"
OFF, ON = False, True  # named for positional flags of the extension's functions
ADVICE = "install a full build of flash-attn"
FLAWS: dict[str, dict[str, object]] = {
    "float16": {"dtype": torch.float16},
    "float32": {"dtype": torch.float32},
    "head dimension 64": {"headdim": 64},
    "head dimension 96": {"headdim": 96},
    "head dimension 120": {"headdim": 120},
    "head dimension 127": {"headdim": 127},
    "head dimension 256": {"headdim": 256},
    "dropout": {"dropout_p": 0.1},
    "softcap": {"softcap": 30.0},
    "ALiBi": {"alibi": True},
}

Check = tuple[str, Callable[[], object], str | None]


def tensors(flaw: dict[str, object], *, packed: int = 0, varlen: bool = False) -> torch.Tensor:
    """Make a small CPU tensor with the flaw's dtype and head dimension."""
    shape: tuple[int, ...] = (8,) if varlen else (1, 8)
    shape += (packed,) if packed else ()
    dtype = flaw.get("dtype", torch.bfloat16)
    return torch.zeros(*shape, 2, flaw.get("headdim", 128), dtype=dtype)  # type: ignore[call-overload]


def options(flaw: dict[str, object]) -> dict[str, object]:
    """Turn a flaw into keyword arguments of the public functions."""
    slopes = torch.zeros(2) if flaw.get("alibi") else None
    return {
        "dropout_p": flaw.get("dropout_p", 0.0),
        "softcap": flaw.get("softcap", 0.0),
        "alibi_slopes": slopes,
    }


def python_calls(flaw: dict[str, object]) -> Iterator[tuple[str, Callable[[], object]]]:
    """List the seven public functions, each called with the flaw."""
    x, kv, qkv = tensors(flaw), tensors(flaw, packed=2), tensors(flaw, packed=3)
    vx, vkv, vqkv = (tensors(flaw, packed=n, varlen=True) for n in (0, 2, 3))
    lengths, more = torch.tensor([0, 8], dtype=torch.int32), options(flaw)
    yield "flash_attn_func", lambda: flash_attn.flash_attn_func(x, x, x, **more)
    yield "flash_attn_kvpacked_func", lambda: flash_attn.flash_attn_kvpacked_func(x, kv, **more)
    yield "flash_attn_qkvpacked_func", lambda: flash_attn.flash_attn_qkvpacked_func(qkv, **more)
    yield (
        "flash_attn_varlen_func",
        lambda: flash_attn.flash_attn_varlen_func(vx, vx, vx, lengths, lengths, 8, 8, **more),
    )
    yield (
        "flash_attn_varlen_kvpacked_func",
        lambda: flash_attn.flash_attn_varlen_kvpacked_func(vx, vkv, lengths, lengths, 8, 8, **more),
    )
    yield (
        "flash_attn_varlen_qkvpacked_func",
        lambda: flash_attn.flash_attn_varlen_qkvpacked_func(vqkv, lengths, 8, **more),
    )
    if "dropout_p" not in flaw:
        cache = {key: value for key, value in more.items() if key != "dropout_p"}
        yield "flash_attn_with_kvcache", lambda: flash_attn.flash_attn_with_kvcache(x, x, x, **cache)


def operator_calls(flaw: dict[str, object]) -> Iterator[tuple[str, Callable[[], object]]]:
    """List the forward operators that other packages call, past torch's dispatcher."""
    x, vx, lengths = tensors(flaw), tensors(flaw, varlen=True), torch.tensor([0, 8], dtype=torch.int32)
    more = options(flaw)
    tail = (more["dropout_p"], 1.0, False, -1, -1, more["softcap"], more["alibi_slopes"], False)
    fixed, varlen = interface._flash_attn_forward, interface._flash_attn_varlen_forward
    yield "_flash_attn_forward", lambda: fixed._init_fn(x, x, x, *tail)
    yield (
        "_flash_attn_varlen_forward",
        lambda: varlen._init_fn(vx, vx, vx, lengths, lengths, 8, 8, *tail),
    )


def extension_calls(flaw: dict[str, object]) -> Iterator[tuple[str, Callable[[], object]]]:
    """List the extension's forward entry points, called without the Python in front of them."""
    x, vx, lengths = tensors(flaw), tensors(flaw, varlen=True), torch.tensor([0, 8], dtype=torch.int32)
    p, cap, slopes = options(flaw).values()
    mask = (False, -1, -1, cap)
    yield "fwd", lambda: extension.fwd(x, x, x, None, slopes, p, 1.0, *mask, OFF, None)
    sizes = (lengths, lengths, None, None, None, slopes, 8, 8)
    yield (
        "varlen_fwd",
        lambda: extension.varlen_fwd(vx, vx, vx, None, *sizes, p, 1.0, OFF, *mask, OFF, None),
    )
    if "dropout_p" not in flaw:
        absent = (None,) * 8
        yield (
            "fwd_kvcache",
            lambda: extension.fwd_kvcache(x, x, x, *absent, slopes, None, 1.0, *mask, ON, 0),
        )


def backward_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """List the ways into the backward pass: extension, operators, and autograd over a stand-in forward."""
    x, vx, lengths = tensors({}), tensors({}, varlen=True), torch.tensor([0, 8], dtype=torch.int32)
    rest = (0.0, 1.0, False, -1, -1, 0.0)
    yield "bwd", lambda: extension.bwd(x, x, x, x, x, x, x, x, x, None, *rest, OFF, None, None)
    sizes, scale = (lengths, lengths, None, 8, 8), (0.0, 1.0, False)
    yield (
        "varlen_bwd",
        lambda: extension.varlen_bwd(*(vx,) * 9, *sizes, *scale, *rest[2:], OFF, None, None),
    )
    fixed, varlen = interface._flash_attn_backward, interface._flash_attn_varlen_backward
    # The operators have CUDA kernels only. Given a CPU kernel too (a forward that computes nothing, and
    # the package's own backward), autograd runs through the package's classes as it would on a GPU.
    interface._flash_attn_forward.register_kernel("cpu")(interface._flash_attn_forward_fake)
    interface._flash_attn_varlen_forward.register_kernel("cpu")(interface._flash_attn_varlen_forward_fake)
    fixed.register_kernel("cpu")(fixed._init_fn)
    varlen.register_kernel("cpu")(varlen._init_fn)
    q, vq = x.clone().requires_grad_(), vx.clone().requires_grad_()
    yield "flash_attn_func.backward", lambda: flash_attn.flash_attn_func(q, q, q).sum().backward()
    yield (
        "flash_attn_varlen_func.backward",
        lambda: flash_attn.flash_attn_varlen_func(vq, vq, vq, lengths, lengths, 8, 8).sum().backward(),
    )


def refusals() -> Iterator[Check]:
    """List every refusal: its name, the call, and the word that the message must hold."""
    for flaw, change in FLAWS.items():
        for layer, calls in (
            ("python", python_calls),
            ("operator", operator_calls),
            ("c++", extension_calls),
        ):
            for name, call in calls(change):
                yield f"{layer}: {name} refuses {flaw}", call, said(flaw, layer)
    for name, call in backward_calls():
        yield f"{name} refuses", call, "backward pass"


def said(flaw: str, layer: str) -> str:
    """Say how the layer names the flaw: C++ prints dtypes by their C++ names."""
    names = {"float16": "Half", "float32": "float"} if layer == "c++" else {}
    return names.get(flaw, flaw)


def outcome(call: Callable[[], object], word: str) -> tuple[bool, str]:
    """Run a call that must be refused with the variant's name, the word and the advice."""
    try:
        call()
    except NotImplementedError as error:
        text = str(error).partition("\n")[0]
        return all(part in text for part in (VARIANT, word, ADVICE)), text
    except Exception as error:  # noqa: BLE001
        return False, f"{type(error).__name__}: {error}".partition("\n")[0]
    return False, "was not refused"


def accepted() -> Iterator[tuple[str, bool, str]]:
    """Check that what the variant has gets past its own checks, to torch's "no CPU kernel" or CUDA's."""
    for layer, calls in (("python", python_calls), ("c++", extension_calls)):
        for name, call in calls({}):
            ok, text = outcome(call, "")
            yield f"{layer}: {name} takes bfloat16, 128", not ok and VARIANT not in text, text


def main() -> int:
    """Run all checks; return 1 if one failed."""
    results = [
        ("flash_attn.__version__", flash_attn.__version__ == "2.8.3", flash_attn.__version__),
        ("flash_attn.__variant__", flash_attn.__variant__ == VARIANT, flash_attn.__variant__),
        ("flash_attn_2_cuda.__variant__", extension.__variant__ == VARIANT, extension.__variant__),
        *accepted(),
        *((name, *outcome(call, word or "")) for name, call, word in refusals()),
    ]
    for name, ok, text in results:
        sys.stdout.write(json.dumps({"check": name, "ok": ok, "text": text}) + "\n")
    failed = sum(not ok for _, ok, _ in results)
    sys.stdout.write(json.dumps({"checks": len(results), "failed": failed}) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
