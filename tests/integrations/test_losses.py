"""Losses per sample are what the models of transformers compute for each sample by itself."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.trainers import hf

from quietgrad.errors import IntegrationError, LossError
from quietgrad.integrations.losses import (
    QuestionAnswering,
    SequenceClassification,
    Tokens,
    default_loss,
)

_SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
_WORDS = {"vocab_size": 30, "intermediate_size": 16, "max_position_embeddings": 16}


def _bert(kind, **options):
    return getattr(hf, f"BertFor{kind}")(hf.BertConfig(**_SMALL, **_WORDS, **options))


def _gpt2(kind):
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 30, "n_positions": 16}
    return getattr(hf, kind)(hf.GPT2Config(**sizes, pad_token_id=0, num_labels=3))


def _llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_SMALL, **_WORDS, num_key_value_heads=2))


def _t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = hf.T5Config(vocab_size=30, decoder_start_token_id=0, **sizes)
    return hf.T5ForConditionalGeneration(config)


def _vit(**options):
    image = {"image_size": 8, "patch_size": 4, "num_channels": 1, "intermediate_size": 16}
    return hf.ViTForImageClassification(hf.ViTConfig(**_SMALL, **image, **options))


CLASSES, NUMBERS = torch.tensor([0, 2, 1]), torch.tensor([[0.5], [-1.0], [2.0]])
MANY = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
TAGS = torch.tensor([[1, 2, 0, -100], [-100, 1, -100, -100], [2, 2, 1, 0]])
WORDS = torch.tensor([[5, 6, 7, -100], [-100, 9, 4, -100], [1, 2, 3, 4]])
SPANS = {"start_positions": torch.tensor([0, 1, 3]), "end_positions": torch.tensor([2, 1, 3])}

TASKS = {
    "classes": (lambda: _bert("SequenceClassification", num_labels=3), {"labels": CLASSES}),
    "one number": (lambda: _bert("SequenceClassification", num_labels=1), {"labels": NUMBERS}),
    "several labels": (lambda: _bert("SequenceClassification", num_labels=3), {"labels": MANY}),
    "several numbers": (
        lambda: _bert("SequenceClassification", num_labels=3, problem_type="regression"),
        {"labels": MANY},
    ),
    "last token": (lambda: _gpt2("GPT2ForSequenceClassification"), {"labels": CLASSES}),
    "tags": (lambda: _bert("TokenClassification", num_labels=3), {"labels": TAGS}),
    "masked words": (lambda: _bert("MaskedLM"), {"labels": WORDS}),
    "next word": (lambda: _gpt2("GPT2LMHeadModel"), {"labels": WORDS}),
    "next word of Llama": (_llama, {"labels": WORDS}),
    "answers": (lambda: _bert("QuestionAnswering"), SPANS),
    "images": (lambda: _vit(num_labels=3), {"labels": CLASSES}),
}


def inputs_of(model):
    torch.manual_seed(1)
    if isinstance(model, hf.ViTForImageClassification):
        return {"pixel_values": torch.randn(3, 1, 8, 8)}
    return {
        "input_ids": torch.randint(1, 30, (3, 4)),
        "attention_mask": torch.ones(3, 4, dtype=torch.long),
    }


@pytest.mark.parametrize("task", TASKS)
def test_the_default_is_the_loss_of_a_batch_of_one(task):
    torch.manual_seed(0)
    make, labels = TASKS[task]
    model = make().eval()
    loss, inputs = default_loss(model), inputs_of(model)
    found = loss(model(**inputs), inputs | labels)
    assert found.shape == (3,)
    for i, each in enumerate(found):
        alone = {name: value[i : i + 1] for name, value in (inputs | labels).items()}
        torch.testing.assert_close(each, model(**alone).loss, rtol=1e-5, atol=1e-5)


def test_sequence_to_sequence_models_too():
    torch.manual_seed(0)
    model = _t5().eval()
    loss, inputs = default_loss(model), inputs_of(model)
    words = model.prepare_decoder_input_ids_from_labels(labels=WORDS)
    found = loss(model(**inputs, decoder_input_ids=words), {"labels": WORDS})
    for i, each in enumerate(found):
        alone = {name: value[i : i + 1] for name, value in inputs.items()}
        torch.testing.assert_close(each, model(**alone, labels=WORDS[i : i + 1]).loss)


def test_padding_gets_no_probability_of_an_answer():
    torch.manual_seed(0)
    logits = {"start_logits": torch.randn(2, 6), "end_logits": torch.randn(2, 6)}
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    batch = {
        "attention_mask": mask,
        "start_positions": torch.tensor([1, 5]),
        "end_positions": torch.tensor([4, 9]),  # cut off in both
    }
    found = QuestionAnswering()(logits, batch)
    short = F.cross_entropy(logits["start_logits"][:1, :3], torch.tensor([1])) / 2
    long = F.cross_entropy(logits["start_logits"][1:], torch.tensor([5])) / 2
    torch.testing.assert_close(found, torch.stack([short, long]))


@pytest.mark.parametrize("shift", [False, True])
def test_class_weights_and_smoothing_are_those_of_torch(shift):
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 3)
    loss = Tokens(shift=shift, class_weights=[1.0, 0.5, 2.0], label_smoothing=0.1)
    found = loss({"logits": logits}, {"labels": TAGS})
    assert found[1] == 0 or not shift or TAGS[1, 1] != -100
    for i, each in enumerate(found):
        scores, tags = (logits[i, :-1], TAGS[i, 1:]) if shift else (logits[i], TAGS[i])
        weight = torch.tensor([1.0, 0.5, 2.0])
        torch.testing.assert_close(
            each, F.cross_entropy(scores, tags, weight=weight, label_smoothing=0.1)
        )


def test_weights_of_classes_are_not_divided_by_those_of_other_samples():
    torch.manual_seed(0)
    logits, weights = torch.randn(3, 3), torch.tensor([1.0, 0.5, 2.0])
    found = SequenceClassification(class_weights=weights.tolist())(
        {"logits": logits}, {"labels": CLASSES}
    )
    plain = F.cross_entropy(logits, CLASSES, reduction="none")
    torch.testing.assert_close(found, plain * weights[CLASSES])


def test_a_sample_without_labels_has_no_loss():
    logits = torch.randn(2, 4, 3, requires_grad=True)
    labels = torch.full((2, 4), -100)
    losses = Tokens()({"logits": logits}, {"labels": labels})
    losses.sum().backward()
    assert losses.tolist() == [0, 0]
    assert logits.grad.abs().max() == 0


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: torch.nn.Linear(2, 2), "no loss per sample is known for Linear.*per_sample_loss"),
        (lambda: hf.BertForNextSentencePrediction(hf.BertConfig(**_SMALL, **_WORDS)), "computes"),
    ],
)
def test_other_models_are_named(model, match):
    with pytest.raises(IntegrationError, match=match):
        default_loss(model())


def test_bad_input_is_named():
    logits = {"logits": torch.randn(3, 3)}
    for options, match in [
        ({"class_weights": [1.0, math.nan]}, "one finite number"),
        ({"class_weights": torch.ones(3)}, "public constants in a list"),
        ({"label_smoothing": 2}, "from 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=match):
            SequenceClassification(**options)
    with pytest.raises(LossError, match="2 numbers, and the model 3 classes"):
        SequenceClassification(class_weights=[1.0, 2.0])(logits, {"labels": CLASSES})
    with pytest.raises(IntegrationError, match="no 'labels'; it has input_ids"):
        SequenceClassification()(logits, {"input_ids": CLASSES})
    with pytest.raises(IntegrationError, match="returned no 'start_logits'"):
        QuestionAnswering()(logits, SPANS)
    with pytest.raises(IntegrationError, match="this is regression"):
        loss = SequenceClassification(label_smoothing=0.1, problem_type="regression")
        loss({"logits": torch.randn(3, 1)}, {"labels": NUMBERS})
    with pytest.raises(IntegrationError, match="question answering"):
        default_loss(_bert("QuestionAnswering"), label_smoothing=0.1)
    with pytest.raises(LossError, match="same positions"):
        Tokens()({"logits": torch.randn(3, 5, 3)}, {"labels": TAGS})
