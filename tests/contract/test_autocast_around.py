"""An autocast block that ends only after ``backward``: norms and sums are not rounded to half."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))


def images():
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    return nn.Sequential(*layers)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lstm = nn.Embedding(9, 8), nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        ids = (x.flatten(1)[:, :6].abs() * 4).long().clamp_max(8)
        return self.head(self.attention(self.lstm(self.table(ids))[0]).mean(1))


MODELS = {"mlp": mlp, "images": images, "words": Words}
# torch's LSTM has no float16 on a CPU.
CASES = [(name, dtype) for name in MODELS for dtype in (torch.bfloat16, torch.float16)][:-1]
every_case = pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)


@pytest.mark.parametrize("strategy", ["auto", "ghost", "keep", "discard"])
@every_case
def test_sums_are_those_of_a_block_around_the_forward_alone(name, dtype, strategy):
    torch.manual_seed(0)
    model, x, y = MODELS[name](), torch.randn(5, 1, 8, 8), torch.arange(5) % 4

    def losses():
        with torch.autocast("cpu", dtype):
            return F.cross_entropy(model(x).float(), y, reduction="none")

    options = {"clipping": "abadi", "radius": 0.01, "strategy": strategy}
    inside = qg.clipped_sum(model, losses, **options)
    with torch.autocast("cpu", dtype):
        around = qg.clipped_sum(model, losses, **options)
    for key, total in inside.grads.items():
        assert around.grads[key].dtype == torch.float32
        torch.testing.assert_close(around.grads[key], total, rtol=1e-5, atol=1e-7)


@every_case
@pytest.mark.filterwarnings("ignore:seed=")
def test_steps_are_those_of_a_block_around_the_forward_alone(name, dtype):
    trained = []
    for is_around in (False, True):
        torch.manual_seed(0)
        model = MODELS[name]()
        data = TensorDataset(torch.randn(12, 1, 8, 8), torch.arange(12) % 4)
        engine = qg.PrivacyEngine(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data,
            batch_size=6,
            noise_multiplier=1.0,
            delta=1e-3,
            seed=1,
        )
        for batch in engine.batches():
            with torch.autocast("cpu", dtype, enabled=is_around):
                for x, y in batch:
                    with torch.autocast("cpu", dtype):
                        losses = F.cross_entropy(model(x), y, reduction="none")
                    engine.backward(losses)
                engine.step()
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)
