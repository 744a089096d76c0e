"""`python -m phalanx.launch RANKS CONFIG`: starts the ranks of a run on this machine and sees them to their end.

A rank that dies takes the others with it: checkpoints appear whole or not at all, so that nothing is lost. SIGTERM,
SIGINT and SIGUSR1 go on to every rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import torch.distributed as dist

_GRACE = 1.0  # seconds that ranks get to end by themselves after one has failed
_POLL = 0.05


class Ranks:
    """The processes of a run. `folder` takes what they have to say of their ends."""

    def __init__(self, count: int, config: str, folder: Path) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        self._folder = folder
        self.processes = [self._start(rank, count, config) for rank in range(count)]

    def _start(self, rank: int, count: int, config: str) -> subprocess.Popen:
        place = dict(
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=count,
            LOCAL_WORLD_SIZE=count,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=self._store.port,
            TORCHELASTIC_USE_AGENT_STORE=True,  # the store is ours
            GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            PHALANX_ERROR_FILE=self._error_file(rank),
            PHALANX_LAUNCHER=os.getpid(),
        )
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        command = [sys.executable, "-m", "phalanx.ranks", config]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    def _error_file(self, rank: int) -> Path:
        return self._folder / f"rank{rank}"

    def pass_on(self, number: int, frame: FrameType | None = None) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> int:
        """The exit code of the run, once every rank has ended."""
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [rank for rank, code in enumerate(codes) if code not in (None, 0, INTERRUPTED)]
            if failed:
                return self._end(failed[0])
            if None not in codes:
                return max(codes)
            time.sleep(_POLL)

    def _end(self, first: int) -> int:
        """Ends what is left. A rank that was killed is the cause; others fail because it is gone."""
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
            time.sleep(_POLL)
        killed = [rank for rank, process in enumerate(self.processes) if (process.poll() or 0) < 0]
        self.pass_on(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        cause = killed[0] if killed else first
        print(f"phalanx: error: {self._describe(cause)}", file=sys.stderr)
        code = self.processes[cause].returncode
        return 128 - code if code < 0 else code

    def _describe(self, rank: int) -> str:
        code, error = self.processes[rank].returncode, self._error_file(rank)
        where = f"rank {rank} on {socket.gethostname()}"
        if code < 0:
            return (
                f"{where} was ended by signal {-code} ({signal.Signals(-code).name}); the same command goes on from "
                "the last checkpoint"
            )
        return f"{where}: " + (error.read_text() if error.exists() else f"ended with exit code {code}")


INTERRUPTED = 75  # of src/bind/engine_c_api.h: saved after a signal


def main() -> int:
    count, config = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="phalanx-ranks-") as folder:
        ranks = Ranks(count, config, Path(folder))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, ranks.pass_on)
        return ranks.wait()


if __name__ == "__main__":
    sys.exit(main())
