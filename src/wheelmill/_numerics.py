"""Compute on this machine's GPU what the stack is for, and compare: a program of its own that imports nothing of ours.

Run inside the environment that is looked at: `python -I _numerics.py flash-attn` or `… vllm`. Prints one JSON document.
Tolerances are those of flash-attn's own tests: against torch in float32, the error may be twice (forward) or three
times (backward) that of torch's own attention in the same half precision, plus 1e-5.
"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

Tensors = list[Any]
FORWARD, BACKWARD, SLACK = 2.0, 3.0, 1e-5
SHAPE = (2, 256, 4, 128)
"""Batch, length, heads, head dimension: 128 is in every variant."""


def reference(q: Any, k: Any, v: Any, *, upcast: bool) -> Any:
    """Attend as torch does, causally; `upcast`: in float32."""
    torch = import_module("torch")
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    heads = (each.transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def flash_attn() -> dict[str, object]:
    """Compare flash-attn's forward and backward pass with torch in float32."""
    torch, ours_to_try = import_module("torch"), import_module("flash_attn")
    attention = import_module("torch.nn.attention")
    torch.manual_seed(0)
    made = [torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    direction = torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        exact, plain = (reference(*made, upcast=upcast) for upcast in (True, False))
        gradients = [torch.autograd.grad(out, made, direction.to(out.dtype)) for out in (exact, plain)]
    ours = ours_to_try.flash_attn_func(*made, causal=True)
    figures = [judged("forward", [ours], [plain], [exact], FORWARD)]
    try:
        found = torch.autograd.grad(ours, made, direction)
    except (RuntimeError, NotImplementedError) as error:
        figures.append({"what": "backward", "ok": None, "why": str(error).splitlines()[0]})
    else:
        figures.append(judged("backward", list(found), list(gradients[1]), list(gradients[0]), BACKWARD))
    return {"device": torch.cuda.get_device_name(), "figures": figures}


def judged(what: str, ours: Tensors, plain: Tensors, exact: Tensors, factor: float) -> dict[str, object]:
    """Give the largest errors of both, and whether ours is small enough."""
    error = max(float((a.float() - c.float()).abs().max()) for a, c in zip(ours, exact, strict=True))
    bound = factor * max(float((b.float() - c.float()).abs().max()) for b, c in zip(plain, exact, strict=True)) + SLACK
    return {"what": what, "ok": error <= bound, "error": error, "bound": bound}


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 512,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def vllm() -> dict[str, object]:
    """Start an engine with a model of two layers of made-up weights, and let it say eight tokens."""
    module = import_module("vllm")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        engine = module.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=128,
            gpu_memory_utilization=0.2, max_num_seqs=2,
        )  # fmt: skip
        wanted = module.SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)
        said = engine.generate([{"prompt_token_ids": [1, 5, 9]}], wanted)
    count = len(said[0].outputs[0].token_ids)
    return {"figures": [{"what": "engine", "ok": count == 8, "error": 8 - count, "bound": 0}]}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({"flash-attn": flash_attn, "vllm": vllm}[sys.argv[1]]()) + "\n")
