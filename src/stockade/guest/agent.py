"""The agent: pid 1 of a sandbox. It speaks the wire and starts programs.

It is single-threaded and does one thing at a time as bytes arrive. A program cannot
signal it (pid 1 of a pid namespace is immune from inside: pid_namespaces(7)), trace it
(undumpable), or starve it (another cgroup). What it reports the executor treats as
hostile all the same.
"""

import json
import os
import resource
import select
import signal
import struct
import sys
import time

from . import files, interpreter, program, receipt
from .wire import Wire

WIRE_IN = 3
WIRE_OUT = 4
FIRST_JOIN = 5
CHUNK = 65536
SAMPLE_MS = 100
LIST_PAGE = 256


def warm_up():
    """Run once, in the zygote, what every sandbox runs, so that it is loaded and compiled."""
    interpreter.rehearse()


def main(joins, library):
    """Never returns."""
    try:
        signal.signal(signal.SIGCHLD, _ignore)
        wake, wake_writer = os.pipe()
        os.set_blocking(wake_writer, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        os.set_blocking(WIRE_IN, False)
        os.set_blocking(WIRE_OUT, False)
        Agent(range(FIRST_JOIN, FIRST_JOIN + joins), library, wake).serve()
    except BaseException as error:  # noqa: BLE001 - the executor is told why, or sees the end
        _report(error)
    finally:
        # pid 1 ends: the kernel kills everything else in here.
        os._exit(0)


def _ignore(number, frame):
    """A handler, so that the signal wakes the poll instead of being discarded."""


def _report(error):
    text = "agent: {}: {}".format(type(error).__name__, error)[:900].encode()
    try:
        os.set_blocking(WIRE_OUT, True)
        os.write(WIRE_OUT, struct.pack(">IHB", len(text), 0, 6) + text)
    except OSError:
        return


def rehearse():
    """Do with a wire of its own what a call will do.

    It touches, and so copies, the pages that the call would otherwise have to: the cost
    of a fork is paid before the call.
    """
    wire = Wire()
    wire.hello({})
    service = json.dumps({"service": "rehearsal", "rlimits": {"open_files": 1}}).encode()
    frame = struct.Struct(">IHB")
    wire.receive(
        frame.pack(len(service) + 1, 1, 2) + b"\x06" + service
        + frame.pack(8, 6, 3) + b"print(1)" + frame.pack(0, 6, 5)
    )
    wire.consumed(6, 8)
    wire.send(3, b"1\n")
    wire.send_json(1, {"ended": {"code": 0, "disk": [0, 1], "cpu_seconds": 0.5}})
    wire.close(3)
    wire.outgoing()
    resource.getrusage(resource.RUSAGE_CHILDREN)
    files.usage()
    poll = select.poll()
    poll.register(WIRE_OUT, select.POLLOUT)
    poll.poll(0)


class Parked:
    """A program's process that waits for its specification."""

    def __init__(self, pid, pipes):
        self.pid = pid
        self.stdin, self.stdout, self.stderr, self.result = pipes["agent"]
        self.specification = pipes["specification"]
        self.status = pipes["status"]


class Running:
    """The one program that runs, and the channels of its streams."""

    def __init__(self, parked, channel, last):
        self.pid = parked.pid
        self.control = channel
        self.last = last
        self.status = parked.status
        self.outputs = {}  # descriptor to channel, until its end
        self.input = None  # Feed of standard input
        self.source = None  # Feed of the specification and the source
        self.terminal = None
        self.exit_status = None
        self.usage = None
        self.open_files = 0
        self.peak_processes = 1
        self.stragglers = 0
        self.slave = None
        self.drained = False


class Feed:
    """A channel's bytes on their way into a descriptor of the program's."""

    def __init__(self, descriptor, channel):
        self.descriptor = descriptor
        self.channel = channel
        self.pieces = []
        self.ended = False


class Agent:
    """Everything between the wire and the programs."""

    def __init__(self, joins, library, wake):
        self.joins = joins
        self.library = library
        self.wake = wake
        self.wire = Wire()
        self.poll = select.poll()
        self.poll.register(WIRE_IN, select.POLLIN)
        self.poll.register(wake, select.POLLIN)
        self.wire_waits = False
        self.readers = {}  # descriptor to a callable, for what is not the wire
        self.uploads = {}  # channel to Upload
        self.downloads = {}  # channel to an iterator of pieces
        self.running = None
        self.sampled = 0.0
        self.parked = self.park()
        self.wire.hello(receipt.collect())
        rehearse()
        self.await_parked()

    # --- the loop ---

    def serve(self):
        self.flush()
        while True:
            if self.running is None:
                events = self.poll.poll()
            else:
                events = self.poll.poll(SAMPLE_MS)
                if time.monotonic() - self.sampled > SAMPLE_MS / 1000:
                    self.sample()
            for descriptor, event in events:
                if descriptor == WIRE_IN:
                    self.receive()
                elif descriptor == WIRE_OUT:
                    pass
                elif descriptor == self.wake:
                    self.reap()
                else:
                    handler = self.readers.get(descriptor)
                    if handler is not None:
                        handler(descriptor, event)
            self.flush()

    def receive(self):
        try:
            data = os.read(WIRE_IN, CHUNK)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)  # the executor is gone, and so is everything in here
        for event in self.wire.receive(data):
            self.handle(event)

    def flush(self):
        while True:
            data = self.wire.outgoing()
            if not data:
                break
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(WIRE_OUT, view) :]
                except BlockingIOError:
                    # Nothing else matters until the executor reads: wait for it.
                    select.select([], [WIRE_OUT], [])

    def handle(self, event):
        kind, channel = event[0], event[1]
        if kind == "data":
            self.on_data(channel, event[2])
        elif kind == "close":
            self.on_close(channel)
        elif kind == "granted":
            self.on_granted(channel)
        elif kind == "reset":
            self.on_reset(channel)
        elif kind == "open":
            self.on_open(channel, event[3])

    # --- channels ---

    def on_open(self, channel, service):
        name = service.get("service")
        if name == "program":
            self.start(channel, service)
        elif name == "put":
            self.uploads[channel] = Upload(service["path"], service.get("mode", 0o644))
        elif name == "get":
            self.downloads[channel] = download(service["path"])
            self.continue_download(channel)
        elif name == "list":
            self.downloads[channel] = listing(service["path"])
            self.continue_download(channel)
        else:
            self.wire.reset(channel, "unknown service")

    def on_data(self, channel, data):
        running = self.running
        if running is not None:
            for feed in (running.input, running.source):
                if feed is not None and feed.channel == channel:
                    feed.pieces.append(data)
                    self.pump(feed)
                    return
            if channel == running.control:
                self.wire.consumed(channel, len(data))
                self.command(json.loads(data))
                return
        upload = self.uploads.get(channel)
        if upload is not None:
            upload.write(data)
        self.wire.consumed(channel, len(data))

    def on_close(self, channel):
        running = self.running
        if running is not None:
            for feed in (running.input, running.source):
                if feed is not None and feed.channel == channel:
                    feed.ended = True
                    self.pump(feed)
                    return
        upload = self.uploads.pop(channel, None)
        if upload is not None:
            self.wire.send_json(channel, upload.finish())
            self.wire.close(channel)

    def on_granted(self, channel):
        running = self.running
        if running is not None:
            for descriptor, owner in running.outputs.items():
                if owner == channel:
                    self.poll.register(descriptor, select.POLLIN)
                    return
        if channel in self.downloads:
            self.continue_download(channel)

    def on_reset(self, channel):
        running = self.running
        if running is not None:
            for descriptor, owner in list(running.outputs.items()):
                if owner == channel:
                    self.end_output(descriptor, tell=False)
            for feed in (running.input, running.source):
                if feed is not None and feed.channel == channel:
                    feed.pieces.clear()
                    feed.ended = True
                    self.pump(feed)
        upload = self.uploads.pop(channel, None)
        if upload is not None:
            upload.finish()
        pieces = self.downloads.pop(channel, None)
        if pieces is not None:
            pieces.close()

    def continue_download(self, channel):
        pieces = self.downloads[channel]
        while self.wire.window(channel) > 0:
            piece = pieces.send(None)
            if piece is None:
                del self.downloads[channel]
                self.wire.close(channel)
                return
            self.wire.send(channel, piece)
            self.flush()

    # --- programs ---

    def park(self):
        """Fork the next program's process; it waits in the guest's cgroups."""
        specification, status = os.pipe(), os.pipe()
        stdin, stdout, stderr, result = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(WIRE_IN)
            os.close(WIRE_OUT)
            pipes = {
                "specification": specification[0],
                "status": status[1],
                "stdin": stdin[0],
                "stdout": stdout[1],
                "stderr": stderr[1],
                "result": result[1],
            }
            program.run(pipes, self.joins, self.library)
        for descriptor in (
            specification[0], status[1], stdin[0], stdout[1], stderr[1], result[1],
        ):
            os.close(descriptor)
        for descriptor in (specification[1], status[0], stdin[1], stdout[0], stderr[0], result[0]):
            os.set_blocking(descriptor, False)
        ends = {
            "agent": (stdin[1], stdout[0], stderr[0], result[0]),
            "specification": specification[1],
            "status": status[0],
        }
        return Parked(pid, ends)

    def await_parked(self):
        select.select([self.parked.status], [], [])
        answer = os.read(self.parked.status, 4096)
        if answer != b"+":
            raise RuntimeError("the program's process did not start: %r" % answer)

    def start(self, channel, service):
        if self.running is not None:
            self.wire.send_json(channel, {"refused": {"what": "", "reason": "another program runs"}})
            for offset in range(6):
                self.wire.close(channel + offset)
            return
        if self.parked is None:
            self.parked = self.park()
            self.await_parked()
        parked, self.parked = self.parked, None
        running = self.running = Running(parked, channel, service["last"])
        self.sampled = time.monotonic()
        stdin, outputs = parked.stdin, {parked.stdout: channel + 2, parked.stderr: channel + 3}
        terminal = service.get("terminal")
        if terminal:
            stdin, outputs = self.open_terminal(running, parked, terminal, channel)
            service["terminal"] = os.ttyname(running.slave)
        outputs[parked.result] = channel + 4
        running.outputs = outputs
        running.input = Feed(stdin, channel + 1)
        running.source = Feed(parked.specification, channel + 5)
        text = json.dumps(service).encode()
        running.source.pieces.append(struct.pack(">I", len(text)) + text)
        for descriptor in outputs:
            self.readers[descriptor] = self.read_output
            self.poll.register(descriptor, select.POLLIN)
        self.pump(running.source, counted=False)

    def open_terminal(self, running, parked, size, channel):
        import fcntl
        import termios

        master, slave = os.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
        os.set_blocking(master, False)
        running.terminal, running.slave = master, slave
        for descriptor in (parked.stdin, parked.stdout, parked.stderr):
            os.close(descriptor)
        self.wire.close(channel + 3)
        return os.dup(master), {master: channel + 2}

    def command(self, message):
        running = self.running
        if "stop" in message:
            # The end is then noticed, and reported, like any other.
            os.kill(-1, signal.SIGKILL)
        elif "signal" in message and running.exit_status is None:
            try:
                os.killpg(running.pid, message["signal"])
            except (ProcessLookupError, PermissionError):
                return
        elif "resize" in message and running.terminal is not None:
            import fcntl
            import termios

            rows, columns = message["resize"]
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(running.terminal, termios.TIOCSWINSZ, size)

    def pump(self, feed, counted=True):
        """Write what the program takes now; wait for it to take the rest."""
        if feed.descriptor is None:
            for piece in feed.pieces:
                self.wire.consumed(feed.channel, len(piece))
            feed.pieces.clear()
            return
        while feed.pieces:
            piece = feed.pieces[0]
            try:
                written = os.write(feed.descriptor, piece)
            except BlockingIOError:
                self.readers[feed.descriptor] = lambda descriptor, event: self.pump(feed)
                self.poll.register(feed.descriptor, select.POLLOUT)
                return
            except OSError:
                self.end_feed(feed)  # nobody reads it any more
                self.pump(feed)
                return
            if counted:
                self.wire.consumed(feed.channel, written)
            if written == len(piece):
                feed.pieces.pop(0)
                counted = True
            else:
                feed.pieces[0] = piece[written:]
        if feed.descriptor in self.readers:
            self.forget(feed.descriptor)
        if feed.ended:
            self.end_feed(feed)

    def end_feed(self, feed):
        if self.running is not None and feed is self.running.input and self.running.terminal:
            # A terminal has no end of file; the program is told by its end-of-file key.
            try:
                os.write(feed.descriptor, b"\x04")
            except OSError:
                pass
        self.forget(feed.descriptor)
        os.close(feed.descriptor)
        feed.descriptor = None

    def forget(self, descriptor):
        if self.readers.pop(descriptor, None) is not None:
            self.unwatch(descriptor)

    def unwatch(self, descriptor):
        try:
            self.poll.unregister(descriptor)
        except KeyError:
            return  # it waits for credit, and is not watched

    def read_refusal(self, running):
        """What the program's process said before there was a program; nothing if there was."""
        text = os.read(running.status, 4096)
        os.close(running.status)
        if text:
            self.wire.send(running.control, text)

    def read_output(self, descriptor, event):
        """Whether there may be more to read now."""
        channel = self.running.outputs[descriptor]
        room = self.wire.window(channel)
        if room <= 0:
            self.unwatch(descriptor)  # until the executor grants more
            return False
        try:
            data = os.read(descriptor, min(room, CHUNK))
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal whose last user is gone: EIO, pty(7)
        if data:
            self.wire.send(channel, data)
            return True
        self.end_output(descriptor)
        return False

    def end_output(self, descriptor, tell=True):
        running = self.running
        channel = running.outputs.pop(descriptor)
        self.forget(descriptor)
        os.close(descriptor)
        if running.terminal == descriptor:
            running.terminal = None
        if tell:
            self.wire.close(channel)
        if running.drained and not running.outputs:
            self.report_end()

    # --- ends ---

    def reap(self):
        os.read(self.wake, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            running = self.running
            if os.WIFSTOPPED(status):
                if running is not None and pid == running.pid:
                    self.look_at_exit(pid)
            elif running is not None and pid == running.pid:
                running.exit_status, running.usage = status, usage
            elif self.parked is not None and pid == self.parked.pid:
                self.parked = None  # killed by the memory ceiling; the next is made on demand
        self.finish()

    def look_at_exit(self, pid):
        """A program of the warm interpreter that fails shows itself before it ends."""
        try:
            with open("/proc/%d/comm" % pid) as name:
                marked = name.read().strip() == program.EXIT_MARK
        except OSError:
            return
        if marked:
            self.sample()
            os.kill(pid, signal.SIGCONT)

    def sample(self):
        """What no counter of the kernel tells: descriptors and processes in use."""
        self.sampled = time.monotonic()
        running = self.running
        if running is None or running.exit_status is not None:
            return
        processes = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                processes += 1
        running.peak_processes = max(running.peak_processes, processes)
        try:
            running.open_files = max(
                running.open_files, len(os.listdir("/proc/%d/fd" % running.pid))
            )
        except OSError:
            return

    def finish(self):
        """Once the program has ended: end what it left behind, and send the rest."""
        running = self.running
        if running is None or running.exit_status is None or running.drained:
            return
        running.drained = True
        running.stragglers = kill_others()
        self.read_refusal(running)
        if running.terminal is not None:
            os.close(running.slave)
        for feed in (running.input, running.source):
            feed.pieces.clear()
            if feed.descriptor is not None:
                self.end_feed(feed)
        if not running.outputs:
            self.report_end()
            return
        # All writers are dead: what is still in the pipes comes, then their ends.
        for descriptor in list(running.outputs):
            while descriptor in running.outputs and self.read_output(descriptor, 0):
                pass

    def report_end(self):
        """After the last byte of every stream: complete output comes before the outcome."""
        running, self.running = self.running, None
        self.wire.send_json(running.control, {"ended": self.end_report(running)})
        for offset in (0, 1, 5):
            self.wire.close(running.control + offset)
        self.flush()
        if running.last:
            os._exit(0)

    def end_report(self, running):
        status, usage = running.exit_status, running.usage
        total = resource.getrusage(resource.RUSAGE_CHILDREN)
        disk, inodes = files.usage()
        return {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "cpu_seconds": total.ru_utime + total.ru_stime,
            "peak_memory_bytes": usage.ru_maxrss * 1024,
            "disk": disk,
            "inodes": inodes,
            "open_files": running.open_files,
            "peak_processes": running.peak_processes,
            "stragglers": running.stragglers,
        }


def kill_others():
    """Kill every process in here but the agent, and wait until they are gone."""
    count = 0
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    while True:
        try:
            os.waitpid(-1, 0)
            count += 1
        except ChildProcessError:
            return count


class Upload:
    """A file on its way into the workspace. Errors are kept and told at the end."""

    def __init__(self, path, mode):
        self.written = 0
        self.error = None
        self.file = None
        try:
            self.file = files.open_for_writing(path, mode)
        except files.Refused as refusal:
            self.error = str(refusal)
        except OSError as error:
            self.error = files.explain(error)

    def write(self, data):
        if self.error is not None:
            return
        view = memoryview(data)
        try:
            while view:
                count = os.write(self.file, view)
                self.written += count
                view = view[count:]
        except OSError as error:
            self.error = files.explain(error)

    def finish(self):
        if self.file is not None:
            os.close(self.file)
        return {"written": self.written} if self.error is None else {"error": self.error}


def download(path):
    """Yields the head, then the content, then ``None``."""
    try:
        file, size = files.open_for_reading(path)
    except files.Refused as refusal:
        yield json.dumps({"error": str(refusal)}).encode()
        yield None
        return
    except OSError as error:
        yield json.dumps({"error": files.explain(error)}).encode()
        yield None
        return
    try:
        yield json.dumps({"size": size}).encode()
        left = size
        while left:
            piece = os.read(file, min(left, CHUNK))
            if not piece:
                break  # it shrank: the executor sees that bytes are missing
            left -= len(piece)
            yield piece
    finally:
        os.close(file)
    yield None


def listing(path):
    """Yields pages of entries, then ``None``."""
    page = []
    try:
        for entry in files.list_folder(path):
            page.append(entry)
            if len(page) == LIST_PAGE:
                yield json.dumps({"entries": page, "more": True}).encode()
                page = []
    except files.Refused as refusal:
        yield json.dumps({"error": str(refusal)}).encode()
        yield None
        return
    except OSError as error:
        yield json.dumps({"error": files.explain(error)}).encode()
        yield None
        return
    yield json.dumps({"entries": page, "more": False}).encode()
    yield None


__all__ = ["main", "warm_up"]
sys.dont_write_bytecode = True
