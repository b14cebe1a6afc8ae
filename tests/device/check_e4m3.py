"""The operations of fp8, each alone, against float64: quantising rows, and both kinds of products.

python tests/device/check_e4m3.py SHIMS [CUBLASLT]

A whole model cannot say this much: a value that moves by a rounding to its neighbour's code is then 6% off.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p

import torch
from reference import E4M3, LARGEST_CODE

# Of outputs: rounding to bf16 is 1.7e-3, and the tensor cores add up products of codes with 14 bits or so.
MAX_STREAMED_ERROR, MAX_LIBRARY_ERROR = 3e-3, 5e-3
BF16, FLOAT32, SILU = range(3)  # StreamOutput
STREAMED = ((128, 128), (512, 1024), (4608, 3584), (3584, 3584), (1024, 18944), (37888, 3584))
ROWS = (1, 2, 7, 8, 9, 16, 31, 32, 50, 64, 65, 100, 128, 129, 192, 200, 256, 300)
Rows = tuple[torch.Tensor, torch.Tensor]  # codes, scales


class Shims:
    """shims_e4m3.cu."""

    def __init__(self, path: str, blaslt: str) -> None:
        self.c, self.blaslt = ctypes.CDLL(path), blaslt.encode()
        self.c.e4m3_error.restype = c_char_p

    def call(self, name: str, *arguments: object) -> None:
        given = [
            c_void_p(argument.data_ptr())
            if isinstance(argument, torch.Tensor)
            else c_int64(argument)
            if isinstance(argument, int)
            else argument
            for argument in arguments
        ]
        if getattr(self.c, f"e4m3_{name}")(*given) != 0:
            raise RuntimeError(self.c.e4m3_error().decode())

    def rows(self, name: str, rows: int, cols: int, *arguments: object) -> Rows:
        """Codes and scales, poisoned before the call."""
        codes = torch.full((rows, cols), 0xA5, dtype=torch.uint8, device="cuda")
        scales = torch.full((rows,), -3.0, device="cuda")
        self.call(name, codes, scales, *arguments)
        return codes.view(E4M3), scales

    def stream(self, x: Rows, w: Rows, output: int = BF16) -> torch.Tensor:
        (m, k), n = x[0].shape, w[0].shape[0]
        dtype = torch.float32 if output == FLOAT32 else torch.bfloat16
        y = torch.full((m, n // 2 if output == SILU else n), -77.0, dtype=dtype, device="cuda")
        self.call("stream", y, c_int(output), *x, *w, m, n, k)
        return y

    def library(self, x: Rows, w: Rows) -> torch.Tensor:
        (m, k), n = x[0].shape, w[0].shape[0]
        y = torch.full((m, n), -77.0, dtype=torch.bfloat16, device="cuda")
        self.call("library", c_char_p(self.blaslt), y, *x, *w, m, n, k)
        return y


def random_rows(rows: int, cols: int) -> Rows:
    """Codes of normal values, and scales that differ a hundredfold."""
    codes = (torch.randn(rows, cols, device="cuda") * 100).clamp(-LARGEST_CODE, LARGEST_CODE).to(E4M3)
    return codes, torch.empty(rows, device="cuda").uniform_(-2, 0).exp() * 1e-3


def floats(x: Rows) -> torch.Tensor:
    return x[0].double() * x[1].double()[:, None]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative, of all; infinite where something is not finite."""
    apart = got.double() - wanted
    return float(apart.norm() / wanted.norm()) if bool(apart.isfinite().all()) else float("inf")


def wanted_codes(values: torch.Tensor) -> Rows:
    """As the card does it: one quotient a row, then products in float32."""
    most = values.abs().amax(1, keepdim=True).clamp(min=1e-20)
    quotients = torch.full_like(most, LARGEST_CODE) / most  # a number over a tensor is a reciprocal in torch
    return (values * quotients).to(E4M3), most[:, 0] / LARGEST_CODE


def same_codes(got: Rows, wanted: Rows, least: float) -> None:
    """At least a fraction `least` of the codes is equal, the others are neighbours; scales nearly so."""
    apart = (got[0].view(torch.uint8).int() - wanted[0].view(torch.uint8).int()).abs()
    equal = float((apart == 0).double().mean())
    assert equal >= least, f"{equal:.5f} of the codes are equal"
    is_zero = (got[0].float() == 0) & (wanted[0].float() == 0)
    assert int(apart.masked_fill(is_zero, 0).max()) <= 1, "codes that are no neighbours"
    torch.testing.assert_close(got[1], wanted[1], rtol=1e-2 if least < 1 else 1e-6, atol=0)


def check_quantising(shims: Shims) -> str:
    for rows, cols in (
        (1, 8),
        (3, 512),
        (5, 2048),
        (2, 3584),
        (130, 4096),
        (7, 18944),
        (130, 18944),
        (2, 30000),
        (129, 30000),
    ):
        x = (torch.randn(rows, cols, device="cuda") * 3).bfloat16()
        x[0, :3] = 0
        same_codes(shims.rows("quantise", rows, cols, x, rows, cols), wanted_codes(x.float()), 1.0)
    zeros = torch.zeros(2, 64, dtype=torch.bfloat16, device="cuda")
    assert not bool(floats(shims.rows("quantise", 2, 64, zeros, 2, 64)).any()), "zeros became something"
    for bad in (float("nan"), float("inf")):
        x = torch.ones(3, 2048, device="cuda").bfloat16()
        x[1, 77] = bad
        finite = floats(shims.rows("quantise", 3, 2048, x, 3, 2048)).isfinite().all(1)
        assert finite.tolist() == [True, False, True], f"{bad}: {finite.tolist()}"
    return "codes and scales equal, NaN stays in its row"


def check_norms(shims: Shims) -> str:
    for rows, cols in ((1, 512), (9, 1024), (4, 3584), (3, 4096), (2, 8192), (2, 12288)):
        weight = torch.empty(cols, device="cuda").uniform_(0.5, 1.5)
        delta = torch.randn(rows, cols, device="cuda").bfloat16()
        x_scales, w_scales = torch.rand(rows, device="cuda") + 0.5, torch.rand(cols, device="cuda") + 0.5
        for kind in ("plain", "sum", "scaled sum"):
            x = torch.randn(rows, cols, device="cuda")
            more = delta.float() if kind != "scaled sum" else delta.float() * (w_scales * x_scales[:, None])
            total = x + more if kind != "plain" else x.clone()
            wanted = total * torch.rsqrt(total.square().mean(1, keepdim=True) + 1e-5) * weight
            given = (None, None, None) if kind == "plain" else (delta, None, None)
            given = (delta, x_scales, w_scales) if kind == "scaled sum" else given
            got = shims.rows("norm", rows, cols, x, *given, weight, rows, cols, c_float(1e-5))
            same_codes(got, wanted_codes(wanted), 0.999)
            torch.testing.assert_close(x, total, rtol=1e-6, atol=1e-6)
    return "codes, scales and sums"


def check_silu(shims: Shims) -> str:
    for rows, cols in ((1, 64), (5, 3072), (3, 18944), (200, 18944), (2, 28672)):
        gate_up = torch.randn(rows, 2 * cols, device="cuda").bfloat16()
        x_scales, w_scales = torch.rand(rows, device="cuda") + 0.5, torch.rand(2 * cols, device="cuda") + 0.5
        for scales in ((None, None), (x_scales, w_scales)):
            values = gate_up.float()
            if scales[0] is not None:
                values = values * (w_scales * x_scales[:, None])
            gate, up = values.chunk(2, 1)
            wanted = (torch.nn.functional.silu(gate) * up).bfloat16().float()
            got = shims.rows("silu_mul", rows, cols, gate_up, *scales, rows, cols)
            same_codes(got, wanted_codes(wanted), 0.99)
    return "codes and scales"


def check_streams(shims: Shims) -> str:
    """Any number of tokens; a row has the same bits alone and in company."""
    worst = 0.0
    for n, k in STREAMED:
        w, x = random_rows(n, k), random_rows(max(ROWS), k)
        product = floats(x) @ floats(w).T
        alone = {row: shims.stream((x[0][row : row + 1], x[1][row : row + 1]), w) for row in (0, 5, 63)}
        for m in ROWS:
            given = (x[0][:m], x[1][:m])
            got = shims.stream(given, w)
            worst = max(worst, error(got, product[:m]))
            for row, bits in alone.items():
                assert row >= m or torch.equal(got[row], bits[0]), (
                    f"row {row} of {m} has other bits, {n} x {k}"
                )
        gate, up = product.chunk(2, 1)
        silu = torch.nn.functional.silu(gate) * up
        for m in (9, 50, 140, 250):
            given = (x[0][:m], x[1][:m])
            worst = max(worst, error(shims.stream(given, w, FLOAT32), product[:m]))
            worst = max(worst, error(shims.stream(given, w, SILU), silu[:m]))
    assert worst < MAX_STREAMED_ERROR, f"error {worst:.1e}"
    return f"error {worst:.1e}, bits do not depend on the batch"


def check_library(shims: Shims) -> str:
    worst = 0.0
    for n, k in ((512, 1024), (4608, 3584), (576, 1536), (1024, 18944)):
        w, x = random_rows(n, k), random_rows(1024, k)
        product = floats(x) @ floats(w).T
        for m in (1, 3, 16, 17, 200, 256, 512, 513, 640, 1024):
            worst = max(worst, error(shims.library((x[0][:m], x[1][:m]), w), product[:m]))
    assert worst < MAX_LIBRARY_ERROR, f"error {worst:.1e}"
    return f"error {worst:.1e}"


CHECKS: tuple[Callable[[Shims], str], ...] = (
    check_quantising,
    check_norms,
    check_silu,
    check_streams,
    check_library,
)


def check(shims: Shims) -> bool:
    """Print a line for each check; whether all held."""
    is_good = True
    for run in CHECKS:
        torch.manual_seed(7)
        try:
            outcome = f"pass  {run.__name__}: {run(shims)}"
        except (AssertionError, RuntimeError) as failed:
            outcome, is_good = f"FAIL  {run.__name__}: {failed}", False
        print(outcome, flush=True)
    return is_good


if __name__ == "__main__":
    sys.exit(0 if check(Shims(sys.argv[1], sys.argv[2] if sys.argv[2:] else "")) else 1)
