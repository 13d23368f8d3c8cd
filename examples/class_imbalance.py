"""What helps a rare class in private training: python examples/class_imbalance.py [--seeds 5]

3 % of 6,000 synthetic records are of class 1. Every way of counting them more is tried with several
clipping functions, at epsilon 1. Printed are the shares of held-out records of each class that are
recognized, and their mean. Noise is seeded, so that the table can be repeated: the data are
synthetic, and nobody is protected.
"""

import argparse
import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg

SHARE = 0.03  # of class 1: known to everybody, not counted in the data
PRIORS = torch.tensor([1 - SHARE, SHARE])
WEIGHTS = 0.5 / PRIORS  # both classes weigh the same


def draw(records, generator):
    labels = (torch.rand(records, generator=generator) < SHARE).long()
    return torch.randn(records, 8, generator=generator) + 0.6 * labels.unsqueeze(1), labels


def plain(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


def weighted(logits, y):
    return WEIGHTS[y] * plain(logits, y)


def adjusted(logits, y):
    """Logit adjustment (Menon et al. 2021): the model need not learn the shares of the classes."""
    return plain(logits + PRIORS.log(), y)


def thresholded(logits):
    return logits - PRIORS.log()


WAYS = {
    "nothing": (plain, lambda logits: logits),
    "weights on the losses": (weighted, lambda logits: logits),
    "logit adjustment": (adjusted, lambda logits: logits),
    "another threshold afterwards": (plain, thresholded),
}
CLIPPINGS = {
    "auto-s": {"clipping": "auto-s"},
    "auto-s, gamma 1": {"clipping": qg.clipping.AutoS(gamma=1.0)},
    "psac": {"clipping": "psac"},
    "abadi, R = 1": {"clipping": "abadi"},
    "abadi, R = 20": {"clipping": "abadi", "radius": 20.0},
}
RECORDS, BATCH, EPOCHS, DELTA = 6000, 500, 8, 1e-5


def train(losses, clipping, seed, sigma):
    generator = torch.Generator().manual_seed(seed)
    data = TensorDataset(*draw(RECORDS, generator))
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 2)
    options = CLIPPINGS[clipping]
    rate = 2.0 / options.get("radius", 1.0) ** 0.5
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        data,
        batch_size=BATCH,
        noise_multiplier=sigma,
        delta=DELTA,
        seed=seed,
        **options,
    )
    for _ in range(EPOCHS):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(model(x), y))
            engine.step()
    engine.detach()
    return model, draw(20000, generator)


@torch.no_grad()
def recalls(model, decide, held_out):
    x, y = held_out
    right = decide(model(x)).argmax(1) == y
    return [right[y == label].float().mean().item() for label in (0, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.filterwarnings("ignore", "seed=")
    rate, steps = BATCH / RECORDS, EPOCHS * RECORDS // BATCH
    sigma = qg.accounting.calibrate(epsilon=1.0, delta=DELTA, sample_rate=rate, steps=steps)
    print(f"{'':30}{'clipping':17}{'class 0':>9}{'class 1':>9}{'mean':>9}")
    for way, (losses, decide) in WAYS.items():
        for clipping in CLIPPINGS:
            made = []
            for seed in range(seeds):
                model, held_out = train(losses, clipping, seed, sigma)
                made.append(recalls(model, decide, held_out))
            common, rare = torch.tensor(made).mean(0).tolist()
            mean = (common + rare) / 2
            print(f"{way:30}{clipping:17}{common:9.1%}{rare:9.1%}{mean:9.1%}", flush=True)


if __name__ == "__main__":
    main()
