"""What transformers computes, as the reference for everything that computes logprobs."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def load(path: Path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def perturbed(path: Path, seed: int, scale: float = 0.1):
    """The folder's model with other weights."""
    model, generator = load(path), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def weights_of(model) -> dict[str, torch.Tensor]:
    """By Hugging Face names, the head of a tied model too."""
    return {**model.state_dict(), "lm_head.weight": model.lm_head.weight}


@torch.no_grad()
def logprobs(model, prompt: list[int], completion: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Logprob of each token of the completion, float32 [len(completion)]."""
    ids = torch.tensor([[*prompt, *completion]])
    scores = torch.log_softmax(model(ids).logits.float() / temperature, dim=-1)[0]
    return scores[len(prompt) - 1 : -1].gather(-1, torch.tensor(completion)[:, None])[:, 0]
