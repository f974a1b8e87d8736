"""Start of a launcher in a thread, beside writing records and recovering trials."""

import os
import signal
import threading
from collections.abc import Mapping

from orchestrator.control.launcher_port import Launcher


class LauncherStart:
    """Starts a launcher once: already while something else is done, or when it is waited for.

    Starting takes many seconds in other processes (Ray, the import of torch). The thread lives
    until `close`, because the kernel ends what a launcher starts with the thread that started it.
    """

    def __init__(self, launcher: Launcher) -> None:
        """Start nothing yet."""
        self.launcher = launcher
        self.environment: Mapping[str, str] = dict(os.environ)
        """For processes that are not the launcher's: it may mark by variables what is its own."""
        self._thread: threading.Thread | None = None
        self._came_to_end = threading.Event()
        self._closed = threading.Event()
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Start the launcher in the background."""
        self._thread = threading.Thread(target=self._run, name="launcher start", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when the launcher has started; start it here if that has not begun.

        Raises:
            ExperimentError: As `Launcher.start`.
        """
        if self._thread is None:
            self.launcher.start()
            return
        self._came_to_end.wait()
        if threading.current_thread() is threading.main_thread():
            # Ray takes SIGTERM in its own code, where Python does not see it, and would end this
            # process. Python's handler comes back only by being set again, which no other thread
            # may do.
            handler = signal.getsignal(signal.SIGTERM)
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End all that was started, a start that goes on first. May be called twice."""
        if self._thread is None:
            self.launcher.close()
            return
        self._came_to_end.wait()
        try:
            self.launcher.close()
        finally:
            self._closed.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            self.launcher.start()
        except BaseException as error:
            self._error = error
        finally:
            self._came_to_end.set()
        self._closed.wait()
