"""TRL's trainers: the weights of the engine's own loop, one pair as the unit of DPO, no metrics."""

import math
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.test_trainer_data import SENTENCES, tokenizer
from tests.integrations.trainers import hf, next_token, plain_loop, weights

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")

from quietgrad.accounting import Ledger  # noqa: E402
from quietgrad.errors import IntegrationError  # noqa: E402
from quietgrad.integrations.trl import PrivateDPOTrainer, PrivateSFTTrainer  # noqa: E402

ANSWERS = [" warm day", " snow", " rain and wind", " the sun", " cold"]
OTHERS = [" the the", " is", " here day warm", " snow", " sun"]


def read_words():
    found = tokenizer()
    found.eos_token = "[SEP]"
    found.backend_tokenizer.post_processor = None
    return found


words = pytest.fixture(scope="module", name="words")(read_words)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.LlamaConfig(
        vocab_size=40, intermediate_size=32, num_key_value_heads=2, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, **sizes,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def adapters():
    options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return peft.LoraConfig(r=2, task_type="CAUSAL_LM", lora_dropout=0.0, **options)


def arguments(kind, folder, **options):
    known = {
        "per_device_train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 0.05,
        "max_grad_norm": 0.0, "optim": "sgd", "lr_scheduler_type": "constant", "bf16": False,
        "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no",
        "logging_steps": 1,
    }  # fmt: skip
    return kind(str(folder), **(known | options))


def sft(folder, words, rows=None, model=None, **options):
    data = datasets.Dataset.from_dict(rows or {"text": SENTENCES * 5})
    held_out = datasets.Dataset.from_dict({"text": SENTENCES[:4]})
    return PrivateSFTTrainer(
        model=llama() if model is None else model,
        args=arguments(trl.SFTConfig, folder, **options),
        train_dataset=data,
        eval_dataset=held_out,
        processing_class=words,
        peft_config=adapters(),
        delta=1e-3,
        batch_size=8,
        engine_options={"noise_multiplier": 1.0, "seed": 1},
    )


def dpo(folder, words, answers=ANSWERS, **options):
    rows = {"prompt": SENTENCES * 5, "chosen": answers * 5, "rejected": OTHERS * 5}
    data = datasets.Dataset.from_dict(rows)
    held_out = datasets.Dataset.from_dict({name: values[:4] for name, values in rows.items()})
    return PrivateDPOTrainer(
        model=llama(),
        args=arguments(trl.DPOConfig, folder, **options),
        train_dataset=data,
        eval_dataset=held_out,
        processing_class=words,
        peft_config=adapters(),
        delta=1e-3,
        batch_size=8,
        engine_options={"noise_multiplier": 1.0, "seed": 1},
    )


def test_fine_tuning_ends_with_the_weights_of_the_plain_loop(tmp_path, words):
    run = sft(tmp_path, words)
    plain = peft.get_peft_model(llama(), adapters())
    plain.load_state_dict(run.model.state_dict())
    rows = [{**row, "labels": row["labels"]} for row in run.train_dataset]
    for row in rows:
        row["attention_mask"] = [1] * len(row["input_ids"])
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.05)
    before = weights(plain).clone()
    plain_loop(plain, rows, optimizer, 1, loss=next_token)
    run.train()
    assert torch.allclose(weights(run.model), weights(plain), rtol=0, atol=1e-6)
    assert (weights(plain) - before).abs().max() > 1e-3


def test_the_loss_of_a_pair_is_that_of_trl_for_a_batch_of_one(tmp_path, words):
    run = dpo(tmp_path, words, gradient_checkpointing=False)
    _, collate = run._dataset_and_collator()
    rows = [run.train_dataset[i] for i in range(3)]
    run.model.eval()
    for parameter in run.model.parameters():
        if parameter.requires_grad:  # far from the reference
            parameter.data.normal_(std=0.3)
    found = run.per_sample_losses(run.model, collate(rows)).detach()
    for row, loss in zip(rows, found, strict=True):
        expected = run.compute_loss(run.model, run.data_collator([row]))
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
        assert abs(float(loss) - math.log(2)) > 1e-3


def test_preferences_end_with_the_weights_of_the_plain_loop(tmp_path, words):
    run = dpo(tmp_path, words)
    plain = peft.get_peft_model(llama(), adapters())
    plain.load_state_dict(run.model.state_dict())
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.05)
    pairs = list(run.train_dataset)
    _, collate = run._dataset_and_collator()

    def losses(model, batch):
        sums = []
        for side in ("chosen", "rejected"):
            ids, mask = batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"]
            counts = batch[f"{side}_completion_mask"][:, 1:]

            def logps(ids=ids, mask=mask, counts=counts):
                logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
                return -(F.cross_entropy(logits.mT, ids[:, 1:], reduction="none") * counts).sum(1)

            with torch.no_grad(), model.disable_adapter():
                reference = logps()
            sums.append(logps() - reference)
        return -F.logsigmoid(0.1 * (sums[0] - sums[1]))

    import quietgrad as qg

    engine = qg.PrivacyEngine(
        plain, optimizer, pairs, batch_size=8, physical_batch_size=4, epochs=1, seed=1,
        noise_multiplier=1.0, delta=1e-3, collate_fn=collate,
    )  # fmt: skip
    for batch in engine.batches():
        for content in batch:
            plain.train()
            engine.backward(losses(plain, content))
        engine.step()
    engine.detach()
    run.train()
    assert torch.allclose(weights(run.model), weights(plain), rtol=0, atol=1e-6)


def _public(run):
    clocks = ("runtime", "per_second")
    return [
        {n: v for n, v in log.items() if not n.endswith(clocks)} for log in run.state.log_history
    ]


@pytest.mark.slow
def test_logs_are_the_same_for_other_data(tmp_path, words):
    """And gradient checkpointing and bf16, which TRL switches on, work."""
    defaults = {"bf16": None, "gradient_checkpointing": True, "optim": "adamw_torch"}
    one = sft(tmp_path / "a", words, **defaults)
    two = sft(tmp_path / "b", words, {"text": [" ".join(SENTENCES)] * 25}, **defaults)
    three = dpo(tmp_path / "c", words, **defaults)
    four = dpo(tmp_path / "d", words, ANSWERS[::-1], precompute_ref_log_probs=True, **defaults)
    for run in (one, two, three, four):
        run.train()
    assert _public(one) == _public(two) == _public(three) == _public(four)
    assert set(one.state.log_history[0]) == {"learning_rate", "epsilon", "epoch", "step"}
    assert {"eval_loss", "eval_mean_token_accuracy"} < set(one.evaluate())
    assert "eval_rewards/accuracies" in three.evaluate()


def test_packing_and_auxiliary_losses_are_refused(tmp_path, words):
    with pytest.raises(IntegrationError, match=r"packing=True .* packing=False"):
        sft(tmp_path, words, packing=True)
    with pytest.raises(IntegrationError, match="padding_free=True"):
        sft(tmp_path, words, padding_free=True, max_length=None)
    with pytest.raises(IntegrationError, match=r"loss_type=.*aot.*'sigmoid'"):
        dpo(tmp_path, words, loss_type=["aot"])
    torch.manual_seed(0)
    experts = hf.MixtralForCausalLM(
        hf.MixtralConfig(
            vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, num_local_experts=2, pad_token_id=0,
            output_router_logits=True,
        )
    )  # fmt: skip
    with pytest.raises(IntegrationError, match=r"balance of its experts: .*coef=0\.0"):
        sft(tmp_path, words, model=experts)


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.integrations import test_trl as made
from tests.integrations.trainers import hf

class Kill(hf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

begin, folder = getattr(made, sys.argv[1]), Path(sys.argv[2])
run = begin(folder, made.read_words(), save_strategy="steps", save_steps=2)
run.add_callback(Kill())
run.train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("begin", [sft, dpo])
def test_a_killed_run_goes_on_and_ends_as_a_whole_one(tmp_path, words, begin):
    """The third step was recorded, and lost: it is taken anew, and counts twice."""
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, begin.__name__, str(tmp_path / "cut")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL
    recorded = Ledger.open(tmp_path / "cut/ledger.jsonl").steps
    whole = begin(tmp_path / "whole", words)
    whole.train()
    cut = begin(tmp_path / "cut", words, save_strategy="steps", save_steps=2)
    cut.train(resume_from_checkpoint=True)
    steps = whole.state.global_step
    assert cut.state.global_step == cut.engine.steps_taken == steps
    assert Ledger.open(tmp_path / "cut/ledger.jsonl").steps == recorded - 2 + steps
    assert cut.engine.epsilon() == cut.engine.ledger.epsilon(1e-3)
    assert torch.equal(weights(cut.model), weights(whole.model))
