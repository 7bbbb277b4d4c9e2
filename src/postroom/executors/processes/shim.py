"""Starts the programs of a server, and ensures that none of their processes is left behind.

    server ─▶ launcher, one for each server ─▶ shim, one for each run ─▶ program and its children

The server sends six descriptors for each run to the launcher. The launcher forks each shim, because a fork
takes a tenth of the time that a new Python interpreter takes. The shim starts the program. The shim kills all
processes of the run at the deadline, on request of the server, and when its control socket is closed, for
example because the server was killed.

On Linux, the shim becomes the parent of every orphaned process of the run, so that none escapes. On other
systems, it can kill only the process group of the program.

A program can stop its shim by SIGSTOP. On Linux, a stopped shim continues when the launcher ends. The
launcher ends together with the server, or when the server closes it because a shim does not respond. The
program starts only after the shim has answered, so it cannot stop the shim before. If the system then refuses
to execute the program, it writes the errno to the socket `failed`, which is closed otherwise.

The server writes these lines to the control socket: `end` sends SIGTERM to all processes, `kill` sends
SIGKILL, and `hold T` moves the deadline to the time T. The shim answers `started PID` or `refused ERRNO`,
`exited CODE` for the program, `late` before it kills at the deadline, `left PID...` for processes that have
survived a kill so far, and `ended` when no process is left.

The command is `python -I -S shim.py PLATFORM CLOCK`, with a socket as standard input; CLOCK is the number of
the clock for deadlines. The shim uses only the standard library.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that the launcher and the shims ignore. A service manager may send SIGTERM to all processes,
but only the server decides which of them end. Programs do not inherit this.
"""
_KILL_AGAIN, _TERM_AGAIN, _LOOK_AT_CLOCK = 0.02, 0.25, 1.0
"""Intervals in seconds.

The last one is the longest single wait for a deadline. Waits must be short, because the clock advances while
the machine sleeps, but a wait does not.
"""
_MAX_NAMES_SHOWN = 100
_QUICK_ROUNDS = 50
"""The number of kills after which the shim kills only once per second.

After that many kills, some process cannot be killed at the moment.
"""


def launch() -> None:
    """Fork a shim for each start request, until the server closes the socket."""
    server = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for number in _TOLD:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps shims that have ended
    while True:
        data, given_ids, *_ = socket.recv_fds(server, 1, 6)
        if not data:
            return
        for item in given_ids:
            os.set_inheritable(item, False)
        try:
            is_shim = os.fork() == 0
        except OSError as error:
            os.write(given_ids[-1], b"refused %d\n" % (error.errno or 0))
            is_shim = False
        if is_shim:
            server.close()
            Shim(*given_ids).run()
            return
        for item in given_ids:
            os.close(item)


class Shim:
    """Supervises all processes of one run."""

    def __init__(self, lock: int, stdin: int, stdout: int, stderr: int, failed: int, control: int) -> None:
        self._lock, self._ends, self._failed = lock, (stdin, stdout, stderr), failed
        self._control = socket.socket(fileno=control)
        self._is_alone = False
        """Whether the connection to the server has ended."""
        self._said = b""
        self._clock = int(sys.argv[2])
        self._until: float | None = None
        self._pid = 0
        self._is_reaper = sys.argv[1] == "linux" and bool(_stat("self")) and _prctl(_SET_CHILD_SUBREAPER, 1)
        if self._is_reaper:  # if the program stops its shim, the end of the launcher continues it
            _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGCONT)
        self._asked: set[tuple[int, bytes]] = set()
        self._wish: signal.Signals | None = None
        self._kills = 0
        self._left: list[int] = []

    def run(self) -> None:
        """Start the program, and return when all processes of the run have ended."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self._start()
        except OSError as error:
            self._say(b"refused %d\n" % (error.errno or 0))
            return
        self._control.setblocking(False)
        while not self._reap():
            if self._until is not None and time.clock_gettime(self._clock) >= self._until:
                if self._wish is not signal.SIGKILL:
                    self._say(b"late\n")
                self._wish = signal.SIGKILL
            if self._wish is not None:
                self._signal(self._wish)
            heard = [woken] if self._is_alone else [woken, self._control.fileno()]
            # The number of seconds until the next check if nothing happens.
            pause: float | None
            if self._wish is signal.SIGKILL:
                pause = _KILL_AGAIN if self._kills < _QUICK_ROUNDS else _LOOK_AT_CLOCK
            elif self._wish is not None:
                pause = _TERM_AGAIN
            elif self._until is None:
                pause = None
            else:
                pause = min(max(self._until - time.clock_gettime(self._clock), 0.0), _LOOK_AT_CLOCK)
            ready = select.select(heard, [], [], pause)[0]
            if woken in ready:
                os.read(woken, 4_096)
            if self._control.fileno() in ready:
                self._hear()

    def _start(self) -> None:
        """Start the program that the server has requested.

        Raises:
            OSError: The system has no resources for a process.
        """
        with self._control.makefile("rb") as reader:
            length, words, until = reader.readline().split()
            texts = reader.read(int(length)).split(b"\0")
        if until != b"-":
            self._until = float(until)
        cwd, *texts = texts
        argv, variables = texts[: int(words)], texts[int(words) :]
        environment = dict(variable.split(b"=", 1) for variable in variables)
        waits, go = os.pipe()
        shim = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(go)
                os.read(waits, 1)
                self._become(shim, argv, environment, cwd)
            except OSError as error:
                os.write(self._failed, b"%d" % (error.errno or 0))
            finally:
                os._exit(127)
        for end in (waits, self._failed, *self._ends):
            os.close(end)
        self._say(b"started %d\n" % self._pid)
        os.close(go)

    def _become(self, shim: int, argv: list[bytes], environment: dict[bytes, bytes], cwd: bytes) -> None:
        os.setsid()
        for position, end in enumerate(self._ends):
            os.dup2(end, position)
        for number in _TOLD:
            signal.signal(number, signal.SIG_DFL)
        if self._is_reaper:
            _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != shim:  # the shim was killed before this call
            os._exit(127)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell; the runner's docstring explains the command

    def _reap(self) -> bool:
        news, is_over, pid = b"", False, -1
        while pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                is_over = self._is_reaper or not self._has_group()
                break
            if pid == self._pid:
                news = b"exited %d\n" % os.waitstatus_to_exitcode(status)
        if is_over:
            os.close(self._lock)
            news += b"ended\n"
        if news:
            self._say(news)
        return is_over

    def _has_group(self) -> bool:
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS reports this for ended processes
            return False
        return True

    def _hear(self) -> None:
        try:
            data = self._control.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_alone, self._wish = True, signal.SIGKILL
            return
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            if line == b"kill":
                self._wish = signal.SIGKILL
            elif line == b"end":
                self._wish = self._wish or signal.SIGTERM
            else:
                self._until = float(line.removeprefix(b"hold "))

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the server has ended or is frozen
            self._control.sendall(line)

    def _signal(self, number: signal.Signals) -> None:
        if not self._is_reaper:
            if number is signal.SIGKILL or not self._asked:
                self._asked.add((self._pid, b""))
                try:
                    os.killpg(self._pid, number)
                except OSError:
                    return
            return
        # The living descendants of this process, each with its start time.
        children: dict[int, list[tuple[int, bytes, bytes]]] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - only names, and faster
            if name.isdigit() and (words := _stat(name)):
                children.setdefault(int(words[1]), []).append((int(name), words[19], words[0]))
        items, parents = [], [os.getpid()]
        while parents:
            for pid, born, state in children.get(parents.pop(), ()):
                parents.append(pid)
                if state not in (b"Z", b"X"):
                    items.append((pid, born))
        for item in items:
            if number is signal.SIGKILL or item not in self._asked:
                self._asked.add(item)
                _send(*item, number)
        if number is signal.SIGKILL:
            self._kills += 1
            if self._kills > 1 and self._left != (left := [pid for pid, _ in items]):
                self._left = left
                self._say(b"left %s\n" % b" ".join(b"%d" % pid for pid in left[:_MAX_NAMES_SHOWN]))


def _stat(pid: object) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the time of a start
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _send(pid: int, born: bytes, number: signal.Signals) -> None:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if (words := _stat(pid)) and words[19] == born:
            signal.pidfd_send_signal(process, number)
    except OSError:  # the process has ended, or its pid belongs to another user's process
        return
    finally:
        os.close(process)


def _prctl(option: int, value: int) -> bool:
    failed: int = ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    return not failed


if __name__ == "__main__":
    if os.fork() == 0:  # the parent exits, so that the system reaps the launcher
        try:
            launch()
        finally:
            os._exit(0)
