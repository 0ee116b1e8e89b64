"""Monarch's side of a placement: job -> host meshes -> proc meshes."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch._src.job.process import ProcessJob  # not exported by monarch.job in 0.7.0
from monarch.actor import HostMesh, ProcMesh, default_bootstrap_cmd
from monarch.job import LocalJob

from rlmesh.errors import RecipeError
from rlmesh.mesh.config import PlacementConfig
from rlmesh.mesh.plan import ReplicaPlan

log = logging.getLogger(__name__)
_STOP_LIMIT_S = 5.0

# Monarch announces every step of connecting to a job; the console says what is waited for.
logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)

# What the controller can import, a proc can: a reward may live in a script's own folder.
_IMPORTABLE = os.pathsep.join(path for path in sys.path if path)


class Hosts:
    """The host meshes of a placement, by name.

    >>> hosts = Hosts(PlacementConfig())              # doctest: +SKIP
    >>> procs = hosts.spawn("policy", "local", plan, {"OMP_NUM_THREADS": "1"}, Path("logs"))
    >>> await hosts.stop()
    """

    def __init__(self, placement: PlacementConfig):
        _check_this_machine(placement)
        if placement.job == "local":
            self._job = LocalJob(list(placement.hosts))
        else:
            self._job = ProcessJob({name: hosts.count for name, hosts in placement.hosts.items()})
        state = self._job.state(cached_path=None)
        self._meshes: dict[str, HostMesh] = {name: getattr(state, name) for name in placement.hosts}
        self.procs: dict[str, ProcMesh] = {}  # by the replica's name

    def spawn(self, name: str, mesh: str, plan: ReplicaPlan, env: dict[str, str], log_dir: Path) -> ProcMesh:
        """Start the procs of one replica; `env` is their launch environment, their output goes to `log_dir/name.log`."""
        hosts = self._meshes[mesh]
        if "hosts" in hosts.sizes and len(plan.hosts) < hosts.sizes["hosts"]:
            hosts = hosts.slice(hosts=slice(plan.hosts[0], plan.hosts[-1] + 1))
        gpus = [proc for host in plan.gpus for proc in host]

        def command(point):
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(visible_gpu(number) for number in gpus[point.rank])}
            launch = {"PYTHONPATH": _IMPORTABLE, "PYTHONUNBUFFERED": "1", **env, **visible}
            return _command(launch, log_dir.resolve() / f"{name}.log")

        enter = functools.partial(_enter_proc, name)
        procs = hosts.spawn_procs({"procs": plan.procs_per_host}, bootstrap=enter, name=name, bootstrap_command=command)
        self.procs[name] = procs
        return procs

    async def kill(self, name: str) -> None:
        """End what is left of a replica's procs and of all that they started, answering or not."""
        await asyncio.to_thread(_kill_titled, title_of(name))
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await self._stop_procs(name, self.procs.pop(name))
        except TimeoutError:
            log.info("%s does not stop", name)

    async def stop(self) -> None:
        """Stop the procs, and then the job's hosts."""
        await asyncio.gather(*[self._stop_procs(name, procs) for name, procs in self.procs.items()])
        if isinstance(self._job, ProcessJob):
            for hosts in self._meshes.values():
                await hosts.shutdown()
            self._job.kill()

    @staticmethod
    async def _stop_procs(name: str, procs: ProcMesh) -> None:
        try:
            await procs.stop()
        except Exception as error:  # one that died must not keep the others from stopping
            log.info("while stopping %s: %s", name, (str(error).strip() or type(error).__name__).splitlines()[0])


def title_of(name: str) -> str:
    """What the processes of a replica are called, where processes are listed."""
    return f"rlmesh:{name}"


def _kill_titled(title: str) -> None:
    """Kill every process below this one that has this title, with all below it."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == [title]:
                for each in [*process.children(recursive=True), process]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                        killed.append(each)
    psutil.wait_procs(killed, _STOP_LIMIT_S)  # what they held is free then, a GPU's memory too


def _command(env: dict[str, str], log_file: Path) -> BootstrapCommand:
    """Monarch's command for a proc, with two things arranged before Monarch's own first line runs.

    It is deaf to Ctrl-C: a terminal sends it to all of a run, and the controller alone acts on it.
    Its output and that of every process it starts goes to `log_file`, whatever writes it and however early.
    """
    plain = default_bootstrap_cmd()
    script = f'trap \'\' INT; exec "$0" "$@" >>{shlex.quote(str(log_file))} 2>&1'
    return BootstrapCommand("/bin/sh", None, ["-c", script, plain.program, *plain.args], env)


def visible_gpu(number: int) -> str:
    """The machine's name for the GPU that is `number` among those that this process was given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[number].strip() if given else str(number)


def _check_this_machine(placement: PlacementConfig) -> None:
    """Raises: RecipeError when the recipe's hosts, which are all this machine, have more GPUs than it."""
    for name, hosts in placement.hosts.items():
        if hosts.gpus > (there := torch.cuda.device_count()):
            raise RecipeError(
                f"placement.hosts.{name}.gpus: the recipe says {hosts.gpus}, and this machine has {there}"
            )


def _enter_proc(name: str) -> None:
    """The first thing that a proc does."""
    import signal

    from setproctitle import setproctitle

    setproctitle(title_of(name))
    # vLLM imports readline, which asks the terminal about itself; a background process is stopped for that.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    import readline  # noqa: F401

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
