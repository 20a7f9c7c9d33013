"""Trains a transcoder for some minutes, and saves it as sae-lens does. Runs in an environment with sae-lens, without ffkv.

    .venv-dictionary/bin/python tools/train_transcoder.py build/transcoder/pairs.safetensors dictionaries/layer_12 --layer 12

BatchTopK (Bussmann et al. 2024): of a batch, the units with the largest activations stay, on average `--active` per token. What is saved
has thresholds in their place (JumpReLU), the mean of the smallest activation that stayed. It is called what it is: trained for minutes.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

BATCH, RATE = 2048, 1e-3
SMOOTH = 0.99  # of the running mean of thresholds
LEAST = 200  # steps, on a machine that is too slow or too busy for them in the time: fewer explain next to nothing


def train(
    x: torch.Tensor, y: torch.Tensor, units: int, active: int, seconds: float, steps: int = 10**9
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a transcoder from x to y, both [token, d], by Adam for so many seconds, or so many steps.

    It takes more seconds if `LEAST` steps, or `steps` if these are fewer, are not done by then.
    """
    needed = min(LEAST, steps)
    torch.manual_seed(0)
    shift_x, shift_y = x.mean(0), y.mean(0)
    size_x, size_y = (x - shift_x).norm(dim=1).mean(), (y - shift_y).norm(dim=1).mean()
    x, y = (x - shift_x) / size_x * x.shape[1] ** 0.5, (y - shift_y) / size_y * y.shape[1] ** 0.5
    encoder = torch.nn.Parameter(torch.nn.functional.normalize(torch.randn(x.shape[1], units), dim=0))
    decoder = torch.nn.Parameter(0.1 * torch.nn.functional.normalize(torch.randn(units, y.shape[1]), dim=1))
    encoder_bias, decoder_bias = (torch.nn.Parameter(torch.zeros(n)) for n in (units, y.shape[1]))
    optimiser = torch.optim.Adam([encoder, decoder, encoder_bias, decoder_bias], lr=RATE)
    threshold, start, step, silent = torch.tensor(0.0), time.monotonic(), 0, torch.zeros(units)
    while (spent := max(min((time.monotonic() - start) / seconds, step / needed), step / steps)) < 1:
        rows = torch.randint(len(x), (BATCH,))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 50) * min(1, 5 * (1 - spent))
        pre = (x[rows] @ encoder + encoder_bias).relu()
        least = pre.detach().flatten().topk(active * BATCH, sorted=False).values.min()
        m = torch.where(pre >= least, pre, 0)
        left = y[rows] - m @ decoder - decoder_bias
        loss = left.square().sum(1).mean() / y.shape[1]
        # Units that were silent for long learn what is left (Gao et al. 2024).
        silent = torch.where((m.detach() > 0).any(0), 0, silent + 1)
        dead = silent > 20
        if dead.any():
            few = min(int(dead.sum()), 2 * active)
            idle, places = (x[rows] @ encoder[:, dead] + encoder_bias[dead]).relu().topk(few, dim=1)
            again = torch.zeros(BATCH, int(dead.sum())).scatter(1, places, idle) @ decoder[dead]
            loss = loss + (left.detach() - again).square().sum(1).mean() / y.shape[1] / 32
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        threshold = least if step == 0 else SMOOTH * threshold + (1 - SMOOTH) * least
        step += 1
    variance = (y - y.mean(0)).square().sum(1).mean() / y.shape[1]
    print(
        f"{step:,} steps of {BATCH} tokens; {left.square().sum(1).mean() / y.shape[1] / variance:.0%} of the variance of the last batch is left; {int(dead.sum())} of {units} units are silent"
    )
    # x and y as they are: what scales and shifts them is folded.
    scale_x, scale_y = x.shape[1] ** 0.5 / size_x, size_y / y.shape[1] ** 0.5
    own = {"W_enc": encoder * scale_x, "b_enc": encoder_bias - shift_x * scale_x @ encoder, "W_dec": decoder * scale_y}
    return own | {"b_dec": decoder_bias * scale_y + shift_y, "threshold": threshold.expand(units)}


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--units", type=int, default=4608)
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    pairs = {name: states.float() for name, states in load_file(given.pairs).items()}
    tensors = train(pairs["x"], pairs["y"], given.units, given.active, given.seconds)
    from sae_lens.saes import JumpReLUTranscoder, JumpReLUTranscoderConfig  # type: ignore[import-not-found]

    width = pairs["x"].shape[1]
    config = JumpReLUTranscoderConfig(d_in=width, d_sae=given.units, d_out=width, apply_b_dec_to_input=False)
    config.metadata.hook_name = f"blocks.{given.layer}.mlp.hook_in"
    config.metadata.hook_name_out = f"blocks.{given.layer}.hook_mlp_out"
    transcoder = JumpReLUTranscoder(config)
    transcoder.load_state_dict({name: tensor.detach().clone() for name, tensor in tensors.items()})
    transcoder.save_model(given.output)


if __name__ == "__main__":
    main()
