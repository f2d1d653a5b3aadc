"""Jobs on a Ray cluster, of one machine or of many: every group of runs is a task of its own.

A task works in its run folder as any process does, so nobody can tell from the folders. What is
lost with a worker goes on with another one, from its last saved state. Only this file knows Ray.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from uuid import uuid4

import torch

from ..checks import UserError, nearest
from .launch import Event, Job, Options, cores, interrupted_once, largest_first, perform

ATTEMPTS = 4  # that a job has, if each is lost with its worker
PATIENCE = 120.0  # seconds until a shared file system knows that a machine with a lock is gone
PAUSE = 0.25  # seconds between two steps that a task tells of
ANSWER = 5.0  # seconds that a cluster gets to answer, and a folder to appear
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # the first words of gRPC, which Ray speaks, and
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS  # of whoever calls it


@dataclass(frozen=True)
class Ask:
    """What the user wants: which cluster, how much of it at once, and the share of a job."""

    address: str | None = None  # None: that of RAY_ADDRESS, or a cluster of this machine alone
    workers: int | None = None  # None: as many as there is room for
    cpus: float = 1.0
    gpus: float | None = None  # None: one on CUDA


@contextmanager
def cluster(ask: Ask, device: str) -> Iterator[tuple[torch.device, Callable]]:
    """Connect, or start a cluster; gives the device of its workers and what launches jobs there."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("torchrun started this process; leave --launcher ray out, or torchrun.")
    ray = _import()
    with interrupted_once():
        _connect(ray, ask)
        try:
            where = _device(ray, device)
            share = _share(ray, ask, where)
            yield where, partial(launch, ray=ray, share=share, workers=ask.workers)
        finally:
            ray.shutdown()


def _import():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    # A page of Ray's log for every worker that is lost; the display has a sentence for it.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UserError(
            "ray is not installed; pip install '.[ray]' in a clone, or leave --launcher ray out."
        ) from None
    return ray


def _connect(ray, ask: Ask) -> None:
    address = ask.address or os.environ.get("RAY_ADDRESS") or "local"
    own = {name: value for name, value in os.environ.items() if name.startswith("FSPOOL_")}
    size = {}
    if address == "local":
        size["num_cpus"] = math.ceil(ask.workers * ask.cpus) if ask.workers else cores()
    elif address != "auto":
        _check_address(address)
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": own},
            **size,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"address is {address!r}, and Ray cannot connect there: {error}") from None


def _check_address(address: str) -> None:
    """Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")  # of IPv6
    if not host or "/" in host or not port.isdecimal():
        raise UserError(
            f"address is {address!r}; expected HOST:PORT of the head of a Ray cluster, or auto."
        )
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER) as connection:
            connection.sendall(HELLO)
            answer = connection.recv(len(SETTINGS))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"address is {address!r}, where nothing answers ({error}); start a cluster with "
            "'ray start --head', or leave --address out for one on this machine."
        ) from None
    if answer[3:4] != SETTINGS[3:4]:
        raise UserError(
            f"address is {address!r}, where something else than Ray answers; expected HOST:PORT of "
            "the head of a Ray cluster."
        )


def _device(ray, name: str) -> torch.device:
    """Of the workers: the machine that asks may have no GPU."""
    name = nearest("device", name, ("auto", "cpu", "cuda"))
    there = ray.cluster_resources().get("GPU", 0) > 0
    if name == "cuda" and not there:
        raise UserError("device is 'cuda', but the Ray cluster has no GPU; pass --device cpu.")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def _share(ray, ask: Ask, device: torch.device) -> dict[str, float]:
    """Of a machine, for one job; Ray would wait for ever for a machine that is large enough."""
    on_gpu = device.type == "cuda"
    if ask.gpus and not on_gpu:
        raise UserError(f"gpus is {ask.gpus:g}, but the runs are on the CPU; leave --gpus out.")
    share = {"CPU": ask.cpus} | ({"GPU": ask.gpus or 1.0} if on_gpu else {})
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(m.get(kind, 0) >= part for kind, part in share.items()) for m in machines):
        wanted = " and ".join(f"{part:g} {kind}{'s' * (part != 1)}" for kind, part in share.items())
        raise UserError(
            f"no machine of the Ray cluster has {wanted}, which every group of runs is to have; "
            "ask for less with --cpus and --gpus."
        )
    return {"num_cpus": share["CPU"], "num_gpus": share.get("GPU", 0)}


def launch(
    jobs: list[Job],
    options: Options,
    handle: Callable[[Event], None],
    *,
    ray,
    share: dict[str, float],
    workers: int | None = None,
) -> list[Job]:
    """Run the jobs, the largest first; return those that failed."""
    if not jobs:
        return []
    options = replace(options, threads=max(1, int(share["num_cpus"])))
    with _marker(jobs) as marker:
        crew = Crew(ray, share, jobs, handle)
        try:
            while crew.waiting or crew.working:
                crew.start(workers or len(jobs), options, marker)
                crew.listen()
        except BaseException:
            crew.stop()
            raise
    return [job for job, end in crew.over.items() if end == "failed"]


class Crew:
    """Jobs that wait, those that tasks work on, and those that are over."""

    def __init__(
        self, ray, share: dict[str, float], jobs: list[Job], handle: Callable[[Event], None]
    ) -> None:
        self.ray, self.handle = ray, handle
        # Ray would try again by itself, but say nothing, and mix up the events of two attempts.
        self.task = ray.remote(num_returns="streaming", max_retries=0, **share)(work)
        self.waiting = deque(job for [job] in largest_first([[job] for job in jobs]))
        self.working: dict = {}  # streams of events, each of a task, and their jobs
        self.lost: Counter[Job] = Counter()  # attempts
        self.over: dict[Job, str] = {}  # and how: done or failed

    def start(self, most: int, options: Options, marker: Path) -> None:
        """Tasks for the jobs that wait; Ray starts them when there is room."""
        while self.waiting and len(self.working) < most:
            job = self.waiting.popleft()
            own = replace(options, patience=PATIENCE) if self.lost[job] else options
            task = self.task.options(name=job.label)
            self.working[task.remote(job, own, Path.cwd(), marker)] = job

    def listen(self) -> None:
        """Wait for what one of the tasks tells next."""
        for stream in self.ray.wait(list(self.working), timeout=0.2)[0]:
            try:
                event = self.ray.get(next(stream))
                self._tell(event._replace(job=self.working[stream]))  # what came back is a copy
            except StopIteration:
                del self.working[stream]
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self.ray.exceptions.RayError as error:
                self._lose(self.working.pop(stream), str(error).partition(".")[0])

    def stop(self) -> None:
        for stream in self.working:
            self.ray.cancel(stream, force=True)

    def _tell(self, event: Event) -> None:
        if event.kind in ("done", "failed"):
            self.over[event.job] = event.kind
        self.handle(event)

    def _lose(self, job: Job, why: str) -> None:
        """A worker is gone: killed, out of memory, or with its machine."""
        if job in self.over:
            return
        self.lost[job] += 1
        if self.lost[job] == ATTEMPTS:
            text = f"its worker was lost {ATTEMPTS} times, at last so: {why}."
            self._tell(Event(job, "failed", text=text))
        else:
            text = f"The worker of {job.label} was lost ({why}); another one goes on with it."
            self._tell(Event(job, "say", text=text))
            self.waiting.appendleft(job)


# --------------------------------------------------------------------------------------------------
# In a worker


def work(job: Job, options: Options, here: Path, marker: Path) -> Iterator[Event]:
    """What happens to a job, as it happens: it is worked on in a thread meanwhile."""
    _enter(here, marker)
    events: SimpleQueue[Event | None] = SimpleQueue()
    threads = {"initializer": torch.set_num_threads, "initargs": (options.threads,)}
    with ThreadPoolExecutor(1, **threads) as thread:
        ended = thread.submit(perform, [job], options, _paced(events.put))
        ended.add_done_callback(lambda _: events.put(None))
        while (event := events.get()) is not None:
            yield event
        ended.result()


def _paced(post: Callable[[Event], None]) -> Callable[[Event], None]:
    """Many small steps a second, of many workers, are more than anybody wants to know."""
    told = -PAUSE

    def slower(event: Event) -> None:
        nonlocal told
        if event.kind == "step":
            if time.monotonic() - told < PAUSE:
                return
            told = time.monotonic()
        post(event)

    return slower


@contextmanager
def _marker(jobs: list[Job]) -> Iterator[Path]:
    """A file among the runs that every worker must see."""
    marker = jobs[0].path.parents[1].absolute() / f".shared-{uuid4().hex}"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


def _enter(here: Path, marker: Path) -> None:
    """Be where the command was given, so that relative paths mean the same."""
    deadline = time.monotonic() + ANSWER
    while not (marker.exists() and here.is_dir()):
        if time.monotonic() > deadline:
            raise UserError(
                f"{marker.parent} on {socket.gethostname()} is not the folder that the command "
                "writes to; choose --out, and give the command, in a file system that all "
                "machines of the Ray cluster share."
            )
        time.sleep(0.1)
    os.chdir(here)
