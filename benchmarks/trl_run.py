"""One run of TRL's GRPOTrainer on the workload of benchmarks/throughput.yaml; throughput.py starts it in TRL's own venv.

    benchmarks/.venv-trl/bin/python benchmarks/trl_run.py MODEL OUT STEPS generate|vllm

Writes a JSON row for each step into OUT, and prints a line for each.
"""

from __future__ import annotations

import functools
import json
import os
import random
import string
import sys
import tempfile
import time

THREADS = 2
PROMPTS, GROUP, NEW_TOKENS, PROMPT_LENGTH = 16, 8, 32, 16

_ENVIRONMENT = {  # read by the libraries when they are imported
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": str(THREADS),
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


def share_of_digits(completions: list[str], **_) -> list[float]:
    """The reward."""
    return [sum(character.isdigit() for character in text) / max(1, len(text)) for text in completions]


def prompts(count: int) -> list[dict[str, str]]:
    """Random letters."""
    source = random.Random(0)
    return [{"prompt": "".join(source.choices(string.ascii_lowercase, k=PROMPT_LENGTH))} for _ in range(count)]


def config(folder: str, steps: int, engine: str):
    """One batch, one optimizer step; nothing is saved and nothing but the steps is logged."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        fp16=False,
        per_device_train_batch_size=PROMPTS * GROUP,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        beta=0.0,
        max_steps=steps,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
        use_vllm=engine == "vllm",
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=64,
    )


def steps_writer(path: str, sync_s: list[float]):
    """A callback that writes `time/step` and the metrics of each step, in the words of rlmesh's metrics.jsonl."""
    from transformers import TrainerCallback

    class Writer(TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.began = time.monotonic()

        def on_log(self, arguments, state, control, logs=None, **_):
            if "reward" not in logs:
                return
            now = time.monotonic()
            row = {
                "step": state.global_step - 1,
                "time/step": now - self.began,
                "reward/mean": logs["reward"],
                "completions/mean_length": logs["completions/mean_length"],
                "tokens/sampled": logs["completions/mean_length"] * PROMPTS * GROUP,
                "time/weight_sync": sum(sync_s),
            }
            sync_s.clear()
            self.began = now
            with open(path, "a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"step {row['step']} | {row['time/step']:.2f} s | reward {row['reward/mean']:.2f}", flush=True)

    return Writer()


def timed(function, seconds: list[float]):
    """The function, with the seconds of each call added to a list."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        began = time.monotonic()
        result = function(*args, **kwargs)
        seconds.append(time.monotonic() - began)
        return result

    return call


def main(model: str, out: str, steps: int, engine: str) -> None:
    """Train."""
    os.environ.update(_ENVIRONMENT)
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    if engine == "vllm":
        import trl.generation.vllm_generation as generation
        import vllm._custom_ops as kernels

        # TRL copies new weights into vLLM's layers one by one, and these have no weights left once oneDNN has packed them.
        kernels._supports_onednn = False
        # TRL has no options for them; vLLM would serve the float32 weights in bfloat16.
        generation.LLM = functools.partial(generation.LLM, dtype="float32", enforce_eager=True)
    torch.set_num_threads(THREADS)
    sync_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            reward_funcs=share_of_digits,
            train_dataset=Dataset.from_list(prompts(PROMPTS * steps)),
            args=config(folder, steps, engine),
            callbacks=[steps_writer(out, sync_s)],
        )
        if engine == "vllm":
            trainer.vllm_generation.sync_weights = timed(trainer.vllm_generation.sync_weights, sync_s)
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
