"""Data, collators and models as scripts for the Trainer have them."""

import pytest
import torch
from tests.integrations.trainers import arguments, bert, hf, lora, texts, weights

from quietgrad.integrations.transformers import PrivateSeq2SeqTrainer, PrivateTrainer

OPTIONS = {"delta": 1e-3, "batch_size": 8, "engine_options": {"noise_multiplier": 1.0, "seed": 1}}
SENTENCES = ["the sun is warm", "rain", "cold wind and snow", "a warm day", "the cold rain is here"]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {
        w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    }
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=32,
    )  # fmt: skip


def train(folder, model, data, kind=PrivateTrainer, args=None, **options):
    before = weights(model).clone()
    args = args or arguments(folder, num_train_epochs=1)
    run = kind(model=model, args=args, train_dataset=data, **(OPTIONS | options))
    run.train()
    assert (weights(run.model) - before).abs().max() > 0
    return run


def small(name, **options):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    words = {"vocab_size": 40, "intermediate_size": 16, "max_position_embeddings": 32}
    return getattr(hf, f"BertFor{name}")(hf.BertConfig(**sizes, **words, **options))


def test_a_data_set_of_datasets_with_a_tokenizer(tmp_path):
    datasets = pytest.importorskip("datasets")
    words = tokenizer()
    rows = {"text": SENTENCES * 5, "label": [0, 1, 2, 0, 1] * 5}
    data = datasets.Dataset.from_dict(rows).map(lambda row: words(row["text"]))
    run = train(tmp_path, bert(), data, processing_class=words)
    assert isinstance(run.data_collator, hf.DataCollatorWithPadding)
    run.save_model()
    assert (tmp_path / "tokenizer.json").exists()


def test_masked_language_models(tmp_path):
    words = tokenizer()
    rows = [words(sentence) for sentence in SENTENCES * 5]
    collator = hf.DataCollatorForLanguageModeling(words, mlm_probability=0.3)
    train(tmp_path, small("MaskedLM"), rows, data_collator=collator)


def test_token_classification(tmp_path):
    words = tokenizer()
    rows = [dict(words(sentence)) for sentence in SENTENCES * 5]
    rows = [{**row, "labels": [i % 3 for i, _ in enumerate(row["input_ids"])]} for row in rows]
    collator = hf.DataCollatorForTokenClassification(words)
    train(tmp_path, small("TokenClassification", num_labels=3), rows, data_collator=collator)


def test_answers_in_texts_of_different_lengths(tmp_path):
    words = tokenizer()
    rows = [words(sentence) for sentence in SENTENCES * 5]
    rows = [{**row, "start_positions": 1, "end_positions": 2} for row in rows]
    model, collator = small("QuestionAnswering"), hf.DataCollatorWithPadding(words)
    train(tmp_path, model, rows, data_collator=collator)


def test_regression_with_adapters_and_a_saved_classifier(tmp_path):
    rows = [{**row, "labels": float(row["labels"])} for row in texts(24)]
    collator = hf.DataCollatorWithPadding(tokenizer())
    model = lora(bert(problem_type=None))
    model.get_base_model().config.problem_type = "regression"
    model.get_base_model().num_labels = model.get_base_model().config.num_labels
    rows = [{**row, "labels": [row["labels"]] * 3} for row in rows]
    train(tmp_path, model, rows, data_collator=collator)


def test_sequence_to_sequence_with_generation(tmp_path):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=40, decoder_start_token_id=0, dropout_rate=0.0, **sizes)
    )
    rows = [{**row, "labels": row["input_ids"][:3]} for row in texts(28)]
    args = hf.Seq2SeqTrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, num_train_epochs=1, max_grad_norm=0,
        predict_with_generate=True, generation_max_length=5, save_strategy="no", use_cpu=True,
        report_to="none", disable_tqdm=True, eval_strategy="epoch",
    )  # fmt: skip
    run = train(
        tmp_path, model, rows[4:], PrivateSeq2SeqTrainer, args, eval_dataset=rows[:4],
        data_collator=hf.DataCollatorForSeq2Seq(tokenizer()),
        compute_metrics=lambda found: {"words": float((found.predictions >= 0).sum())},
    )  # fmt: skip
    assert any("eval_words" in log for log in run.state.log_history)


def test_images(tmp_path):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    image = {"image_size": 8, "patch_size": 4, "num_channels": 1, "intermediate_size": 16}
    model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, **image, num_labels=3))
    rows = [{"pixel_values": torch.randn(1, 8, 8), "labels": i % 3} for i in range(24)]
    train(tmp_path, model, rows)


def test_a_model_that_is_made_by_the_trainer(tmp_path):
    run = PrivateTrainer(
        model_init=lambda: bert(), train_dataset=texts(24),
        args=arguments(tmp_path, num_train_epochs=1),
        data_collator=hf.DataCollatorWithPadding(tokenizer()), **OPTIONS,
    )  # fmt: skip
    run.train()
    assert run.engine.steps_taken == 3
