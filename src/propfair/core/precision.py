"""Mixed precision: matrix products of short numbers in the training steps, and everything else in float32.

Parameters, losses, gradients as they are stepped along, sums, evaluation and the server's rules are float32 whatever
the precision is.
"""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from propfair.core.params import feed
from propfair.errors import ConfigError

Precision = Literal["float32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_SHORT: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BF16 = ("avx512_bf16", "amx_bf16", "avx10_2", "bf16", "sve_bf16")  # what x86 and ARM call it
_FP16 = ("avx512_fp16", "amx_fp16", "fp16_arith")
_TILES = ("amx_bf16", "amx_fp16")  # of these, those that the processor multiplies in tiles
_TILES_RUN = "PROPFAIR_TILES_RUN"  # in the environment: what one process found out, for the workers that it starts
_PRODUCTS = {  # that `torch.autocast` shortens
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "matmul",
    "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "scaled_dot_product_attention",
}  # fmt: skip
_FIRST_SCALE = 2.0**16  # of fp16 objectives, as torch's GradScaler begins
_RETRY = 2.0**-4


def predict(module: Callable[..., Any], inputs: Any, precision: Precision, device: str, cache: bool = True) -> Any:
    """The module's output in float32, from layers that compute in this precision.

    Args:
        module: or a function of its inputs; the parameters are float32.
        inputs: see `feed`.
        precision: of matrix products and convolutions.
        device: where it is computed.
        cache: keep the short copy of a parameter that several layers share; not under `torch.func`.
    """
    if precision == "float32":
        return feed(module, inputs)
    kind = torch.device(device).type
    by_rounding = precision == "bf16" and kind == "cpu" and not _multiplies(_BF16)
    rounding = _ByRounding() if by_rounding else contextlib.nullcontext()
    with torch.autocast(kind, _SHORT[precision], cache_enabled=cache), rounding:
        output = feed(module, inputs)
    return _changed(output, lambda x: x.float() if x.dtype in _SHORT.values() else x)


class _ByRounding(TorchFunctionMode):
    """bf16 on processors without instructions for it: factors and results are rounded, sums are float32.

    That is what the instructions do. Without them the kernels of torch take ten times as long as those of float32.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if getattr(func, "__name__", "") not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        rounded = [_changed(given, _rounded) for given in (tuple(args), dict(kwargs or {}))]
        with torch.autocast("cpu", enabled=False):
            found = func(*rounded[0], **rounded[1])
        return _changed(found, lambda x: x.bfloat16() if x.dtype == torch.float32 else x)


def _rounded(x: Tensor) -> Tensor:
    """Numbers of bf16, held as float32."""
    return x.bfloat16().float() if x.dtype in (torch.float32, torch.bfloat16) else x


class Differentiator:
    """The gradient of an objective, which in fp16 is scaled, since small derivatives would be 0 there.

    Where a scaled derivative is not finite, the same step is differentiated again with a smaller scale, and later steps
    go on with that: no step is left out. The scale starts anew with each client and round, so that nothing but
    (seed, round, client) decides the bits.
    """

    def __init__(self, params: Sequence[Tensor], precision: Precision) -> None:
        self._params = tuple(params)
        self._scale = _FIRST_SCALE if precision == "fp16" else 1.0

    def __call__(self, objective: Tensor, zeros: bool = True) -> tuple[Tensor, ...]:
        """One tensor for each parameter; of those that the objective does not depend on 0, or None without `zeros`."""
        while self._scale > 1:
            scaled = self._differentiate(objective, zeros, self._scale)
            if all(gradient is None or bool(gradient.isfinite().all()) for gradient in scaled):
                return tuple(gradient if gradient is None else gradient / self._scale for gradient in scaled)
            self._scale *= _RETRY
        return self._differentiate(objective, zeros)

    def _differentiate(self, objective: Tensor, zeros: bool, scale: float = 1.0) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            objective, self._params, grad_outputs=None if scale == 1 else torch.full_like(objective, scale),
            retain_graph=scale > 1, allow_unused=True, materialize_grads=zeros,
        )  # fmt: skip


def check_precision(precision: Precision, device: str, dtype: torch.dtype) -> None:
    """Refuse a precision that a model of this type can't be trained in on this device."""
    if precision == "float32":
        return
    if dtype != torch.float32:
        raise ConfigError(
            f"local.precision={precision!r} shortens the numbers of models that hold float32, and this one holds "
            f"{str(dtype).removeprefix('torch.')}. Call model.float(), or leave local.precision alone."
        )
    kind = torch.device(device).type
    if not torch.amp.is_autocast_available(kind):
        raise ConfigError(f"torch can't train in {precision} on device {device!r}. Use local.precision='float32'.")
    if precision == "fp16" and kind == "cpu" and not _multiplies(_FP16):
        raise ConfigError(
            "local.precision='fp16' is for GPUs: this processor can't multiply such numbers. Use --device cuda, or "
            "local.precision='float32'; 'bf16' works on every processor, and is fast on those that multiply it."
        )


def precision_note(precision: Precision, device: str) -> str:
    """What the user should know about a precision on this device; "" for nothing."""
    kind = torch.device(device).type
    if precision == "bf16" and kind == "cpu" and not _multiplies(_BF16):
        return (
            f"this processor can't multiply bf16 ({_why_not()}): the numbers are rounded to bf16 all the same, but "
            "training takes longer than in float32, which is the fast choice here"
        )
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this GPU can't multiply bf16, and training in it takes long: local.precision='fp16' is the fast choice"
    return ""


def _multiplies(instructions: Sequence[str]) -> bool:
    """Whether the processor has any of these instructions; taken for granted where torch is too old to tell."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return True
    return _has(instructions) and (not _has(_TILES) or _tiles_run())


def _has(instructions: Sequence[str]) -> bool:
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in instructions)


@functools.cache
def _tiles_run() -> bool:
    """Whether a product in tiles ends: some virtual machines promise the instructions, and kill who uses them.

    Nothing but trying tells, so another process tries.
    """
    if _TILES_RUN not in os.environ:
        product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
        tried = subprocess.run([sys.executable, "-c", product], capture_output=True, check=False)
        os.environ[_TILES_RUN] = "no" if tried.returncode < 0 else "yes"  # negative: a signal ended it
    return os.environ[_TILES_RUN] == "yes"


def _why_not() -> str:
    if not _has(_BF16):
        return "it has neither avx512_bf16 nor amx_bf16"
    return (
        "it promises amx_bf16, which ends every program that uses it; ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the "
        "environment makes torch do without"
    )


def _changed(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed; whatever else it holds stays."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, Mapping):
        return {name: _changed(value, change) for name, value in values.items()}
    return type(values)(_changed(value, change) for value in values) if type(values) in (tuple, list) else values
