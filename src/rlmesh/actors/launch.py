"""Environment variables that libraries read when they are imported, so that they must be there when a process starts."""

from __future__ import annotations

from rlmesh.actors.config import PolicyServerConfig

# Ranks on one host need not be reached from another. Left to themselves both listen where the host's name leads.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def policy_environment(config: PolicyServerConfig) -> dict[str, str]:
    """The launch environment of a PolicyServer's process.

    On CPU the engine's threads are not bound to cores: the processes of a small machine share them. With
    `enforce_eager` nothing is compiled: on CPU the first request would wait for a C++ compiler (3 to 15 s), which pays only for
    very long generations.
    """
    return {
        **LOOPBACK,
        "HF_HUB_OFFLINE": "1",  # the model is a folder by now
        "VLLM_CPU_KVCACHE_SPACE": str(config.engine.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        **({"VLLM_BATCH_INVARIANT": "1"} if config.engine.batch_invariant else {}),
        **({"TORCHDYNAMO_DISABLE": "1"} if config.engine.enforce_eager else {}),
    }
