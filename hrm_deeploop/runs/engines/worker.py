"""A worker process: runs the jobs that its parent sends, one at a time, and stops in order.

Signals. A job handles the signals that ask for an end itself: it installs handlers, finishes its
step at the first one, and saves. A second one must not reach it while it saves. But a terminal, a
batch system or a notebook signals the whole process group, and the parent asks its workers too. So
these signals are blocked here, from before the interpreter starts; a thread takes what comes, from
either side, and calls the job's handler once. Where a job has no handler it is interrupted.

Life. The parent's end of the connection closes when the parent dies, whatever killed it. The worker
then ends at once, since it holds its run's lock; the run has its last checkpoint.
"""

import os
import pickle
import signal
import threading
from collections.abc import Mapping
from logging import LogRecord
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import NamedTuple

import cloudpickle

from hrm_deeploop.runs.engines.jobs import FailedError, Progress, StoppedError, Throttle
from hrm_deeploop.runs.engines.records import forward_logs
from hrm_deeploop.stop_signals import STOP_SIGNALS

BLOCKED = frozenset(STOP_SIGNALS)
WAKE = signal.SIGURG  # interrupts the main thread, which the blocked ones don't
TELL_EVERY = 0.1  # seconds
LOOK_EVERY = 0.5  # seconds, for a signal that came without the parent


class Begin(NamedTuple):
    """The first message to a worker."""

    levels: Mapping[str, int]  # of the parent's loggers


class Run(NamedTuple):
    """A job for a worker."""

    payload: bytes  # cloudpickled function and job


class Stop(NamedTuple):
    """The running job is to save and end, as after this signal."""

    number: int


class End(NamedTuple):
    """There are no more jobs."""


class Finished(NamedTuple):
    """A job's result, cloudpickled."""

    result: bytes


class Stopped(NamedTuple):
    """A job ended early, after a signal."""

    number: int


Message = Progress | LogRecord | Finished | Stopped | FailedError
"""What a worker sends."""


class Worker:
    """The jobs of this process and the connection that they come from."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._tasks: SimpleQueue[Run | End] = SimpleQueue()
        self._stop: int | None = None  # the signal that the job is to end after
        self._is_due = False  # the job has not been told of it
        self._is_busy = False

    def serve(self) -> None:
        """Run jobs until there are no more."""
        begin = self._connection.recv()
        signal.signal(WAKE, self._wake)
        threading.Thread(target=self._listen, daemon=True).start()
        with forward_logs(begin.levels, self._send):
            while isinstance(task := self._tasks.get(), Run):
                self._run(task)

    def _send(self, message: Message) -> None:
        with self._sending:
            self._connection.send(message)

    def _run(self, task: Run) -> None:
        try:
            self._is_busy = True
            if self._stop is not None:
                raise StoppedError(self._stop)
            function, job = pickle.loads(task.payload)
            result = function(job, Throttle(self._send, TELL_EVERY))
            self._is_busy = False
            message = Finished(cloudpickle.dumps(result))
        except StoppedError as stopped:
            message = Stopped(stopped.number)
        except KeyboardInterrupt:
            message = Stopped(self._stop or signal.SIGINT)
        except BaseException as error:
            # The parent raises it, and stops the other workers.
            self._send(FailedError.of(error))
            raise SystemExit(1) from error
        finally:
            self._is_busy = False
        self._send(message)

    def _listen(self) -> None:
        """Take messages and signals as they come; runs in a thread of its own."""
        while True:
            try:
                message = self._connection.recv() if self._connection.poll(LOOK_EVERY) else None
            except (EOFError, OSError):
                os._exit(1)  # the parent is dead
            if isinstance(message, Stop):
                self._ask(message.number)
            elif message is not None:
                self._tasks.put(message)
            if isinstance(message, End):
                return
            if pending := signal.sigpending() & BLOCKED:
                self._ask(int(signal.sigwait(pending)))

    def _ask(self, number: int) -> None:
        """Have the main thread tell the job of the signal, unless it was told of one."""
        if self._stop is None:
            self._is_due, self._stop = True, number
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, WAKE)

    def _wake(self, _number: int, frame: FrameType | None) -> None:
        """Do what the signal would have done that the job is to end after."""
        if not self._is_due or not self._is_busy or self._stop is None:
            return
        self._is_due = False
        handler = signal.getsignal(self._stop)
        if not callable(handler) or handler is signal.default_int_handler:
            raise KeyboardInterrupt
        handler(self._stop, frame)


def main(handle: int) -> None:
    """Serve the parent at the other end of an inherited file descriptor."""
    os.set_inheritable(handle, False)
    Worker(Connection(handle)).serve()
