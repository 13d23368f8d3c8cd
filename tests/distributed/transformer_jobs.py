"""Stock transformers on sharded weights; each job returns plain data."""

import copy
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import noise as noises

from .sharded_jobs import shard, weights

_SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
_INNER = {"intermediate_size": 64}
_PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}


def _build(kind):
    """A small one, and its blocks."""
    import transformers

    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=4, vocab_size=64, n_positions=16, use_cache=False
        )
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        model = transformers.GPT2LMHeadModel(config)  # whose first and last weight are one
        return model, model.transformer.h
    if kind in ("roberta", "bert"):
        name = "Roberta" if kind == "roberta" else "Bert"
        text = {"vocab_size": 64, "max_position_embeddings": 20}
        config = getattr(transformers, f"{name}Config")(**_SIZES, **_INNER, **_PLAIN, **text)
        model = getattr(transformers, f"{name}ForSequenceClassification")(config)
        return model, getattr(model, kind).encoder.layer
    if kind == "vit":
        image = {"image_size": 8, "patch_size": 4, "num_channels": 1}
        config = transformers.ViTConfig(**_SIZES, **_INNER, **_PLAIN, **image)
        model = transformers.ViTForImageClassification(config)
        return model, model.vit.encoder.layer if hasattr(model.vit, "encoder") else model.vit.layers
    text = {"vocab_size": 64, "max_position_embeddings": 16, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**_SIZES, **_INNER, **text, use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    blocks = model.model.layers
    if kind == "checkpointed llama":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if kind == "lora":
        import peft

        options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_dropout=0.0, **options))
    return model, blocks


def _losses(model, batch):
    x, *labels = batch
    logits = model(x).logits.float()
    if labels:
        return F.cross_entropy(logits, labels[0], reduction="none")
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1)


def _add(self, totals, std, divisor=1.0):
    return [total.float() / divisor for total in totals]


def transformer(kind, steps=5, copies=1, half=False, reshard=None, **options):
    """Weights after some steps without noise, and how far they moved."""
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    model, blocks = _build(kind)
    start = torch.tensor(weights(copy.deepcopy(model)))
    shard(model, list(blocks), copies, reshard, half)
    ids = torch.randint(1, 64, (32, 12), generator=generator)
    images = torch.randn(32, 1, 8, 8, generator=generator)
    rows = [images if kind == "vit" else ids]
    if kind in ("vit", "roberta", "bert"):
        rows.append(torch.arange(32) % 3)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with patch.object(noises.SecureNoise, "add", _add):
        engine = qg.PrivacyEngine(
            model,
            torch.optim.SGD(trained, lr=0.5),
            TensorDataset(*rows),
            batch_size=8,
            physical_batch_size=3,
            noise_multiplier=1.0,
            delta=1e-5,
            seed=1,
            **options,
        )
        while engine.steps_taken < steps:
            for batch in engine.batches():
                for columns in batch:
                    engine.backward(_losses(model, columns))
                engine.step()
                if engine.steps_taken == steps:
                    break
    engine.detach()
    found = torch.tensor(weights(model))
    is_alone = not dist.is_initialized()
    return {"weights": found.tolist(), "moved": float((found - start).abs().max()), "one": is_alone}
