"""The kernel for GPUs finds what the operations of torch find, and Triton compiles it.

`make test-kernel` runs this file twice where there is no GPU: Triton interprets the kernel, and compiles it for a card.
"""

import itertools
import os

import pytest
import torch

from ffkv.activations import triggers
from ffkv.activations.batches import Batch
from ffkv.activations.triggers import start
from ffkv.base.settings import Triggers
from ffkv.model.anatomy import Layer, SecondMatrix

triton = pytest.importorskip("triton", reason="Triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEYS, SENTENCES, TOKENS = 150, 21, 13


def batch(generator: torch.Generator, number: int, dtype: torch.dtype) -> Batch:
    times = torch.randint(0, 3, (SENTENCES, TOKENS), generator=generator).to(dtype)
    times[:, 0] = 0  # BOS
    left_out = (times.flatten() == 0).nonzero()[:, 0]
    counted = times.to(torch.int32) * (torch.arange(SENTENCES) % 8 == 0)[:, None]
    again = (counted.flatten() > 1).nonzero()[:, 0]
    return Batch(
        ids=torch.zeros(SENTENCES, TOKENS, dtype=torch.long),
        competing=slice(1, None),
        left_out=left_out,
        multiplicity=times,
        histogram_times=counted,
        in_histogram=counted.flatten().nonzero()[:, 0],
        in_histogram_again=again,
        times_again=counted.flatten()[again].long() - 1,
        place=torch.randperm(SENTENCES, generator=generator) * TOKENS + number * SENTENCES * TOKENS,
        tokens=1,
        prefixes=1,
    )


@pytest.mark.skipif(not INTERPRETED and DEVICE == "cpu", reason="needs a GPU, or TRITON_INTERPRET=1")
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_finds_what_operations_of_torch_find(monkeypatch, signed, gated, dtype):
    """Many coefficients are equal, and others of about the same size, which are tied; float64 counts more than 2^24 prefixes."""
    matrix = SecondMatrix("w", ["k"], "gated" if gated else "plain", KEYS, gate="k" if gated else "")
    layer = Layer(0, "h.0", [matrix], signed)
    device = torch.device(DEVICE)
    states = [start([layer], Triggers(per_key=7), [device]) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for number, counts in enumerate((torch.float32, torch.float32, torch.float64)):
        own = batch(generator, number, counts)
        m = torch.randint(-3 if signed else 0, 4, (SENTENCES, TOKENS, KEYS), generator=generator).float()
        m = (m * (1 + 3e-5 * torch.rand(m.shape, generator=generator))).to(dtype)
        m[number] = m[number].clamp(max=0)  # no trigger in this sentence
        gate = (torch.rand(m.shape, generator=generator) > 0.5).to(device) if gated else None
        own, m = own.on(device), m.to(device)
        for state, scans in zip(states, (False, True)):
            monkeypatch.setattr(triggers, "can_scan", lambda device, scans=scans: scans)
            state.add(own, layer, m, gate)
    usual, other = states
    for tops in ("highest", "lowest") if signed else ("highest",):
        a, b = (getattr(state, tops)[0] for state in states)
        for top in (a, b):
            top.settle()
        assert torch.equal(a.best, b.best)
    for name in ("fires", "fires_negative", "finite", "maximum", "minimum", "histogram"):
        assert torch.equal(getattr(usual.statistics[0], name), getattr(other.statistics[0], name)), name
    # Sums of float32 in another order, in units of 2^-20.
    assert torch.allclose(usual.statistics[0].total, other.statistics[0].total, rtol=1e-5, atol=64)


@pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel is not compiled")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_cards(capability):
    """For every type of m, of counts, with and without gates and negative coefficients, without a card."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ffkv.activations.scan_kernel import kernel

    counts = dict.fromkeys(("first_place", "triggers", "total", "fires", "fires_negative", "histogram"), "*i64")
    others = {"histogram_times": "*i32", "maximum": "*fp32", "minimum": "*fp32", "finite": "*u8"}
    sizes = dict.fromkeys(("sentences", "tokens", "keys"), "i32")
    blocks = {
        "per_program": triggers.SENTENCES,
        "block_tokens": triggers.TOKENS,
        "block_keys": triggers.KEYS,
        "before": 1,
    }
    for m, times, gated, signed in itertools.product(("fp32", "bf16", "fp16"), ("fp32", "fp64"), (0, 1), (0, 1)):
        tensors = {"m": f"*{m}", "gates": "*u8" if gated else f"*{m}", "multiplicity": f"*{times}"}
        fixed = {"has_gate": bool(gated), "two_sided": bool(signed)} | blocks
        types = tensors | counts | others | sizes | dict.fromkeys(fixed, "constexpr")
        signature = {name: types[name] for name in kernel.arg_names}
        values = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
        source = ASTSource(kernel, signature, values)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
        assert len(made.asm["cubin"]) > 1000


def test_it_runs_on_gpus_only(capsys):
    assert not triggers.can_scan(torch.device("cpu"))
    triggers.can_scan.cache_clear()
    assert triggers.can_scan(torch.device("cuda")) == torch.cuda.is_available()
    assert ("Triton starts no kernel here" in capsys.readouterr().err) != torch.cuda.is_available()
