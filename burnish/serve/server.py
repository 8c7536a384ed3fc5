"""Server of compiled models by the open inference protocol (KServe v2, REST), with batches made of what waits."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, Self

from burnish.base.optional import require
from burnish.errors import ParameterError
from burnish.runtime.callable import CompiledModel
from burnish.serve.options import ServeOptions

BACKLOG = 1024  # connections that wait to be accepted


class Server:
    """Server of ``models``, by name, to clients of the open inference protocol (KServe v2, REST): ``run`` serves until
    a signal, a ``with`` block, in a thread, until its end.

    Accepted requests are answered before it ends. Models are the caller's to close. ``address``: where it listens, as a
    URL. ``unbatched``: why requests of a model are not joined though ``max_batch`` asks for it.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> with bn.serve.Server({"relu": bn.compile(graph, rewrite=False)}, bn.serve.ServeOptions(port=0)) as server:
    ...     server.address.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, models: Mapping[str, CompiledModel], options: ServeOptions | None = None) -> None:
        """Listens, but answers nothing yet. Raises ParameterError, MissingDependencyError, and OSError for an address
        that cannot be had.
        """
        for package in ("starlette", "uvicorn", "httptools", "prometheus_client"):
            require(package, "serve")
        from burnish.serve.app import InferenceApp
        from burnish.serve.http import DrainingServer

        options = options or ServeOptions()
        if not models:
            raise ParameterError("models: found none; allowed: at least one")
        wrong = next((name for name in models if not name or not set(name).isdisjoint("/?#%")), None)
        if wrong is not None:
            raise ParameterError(f"models: found the name {wrong!r}; allowed: names without / ? # %")
        self._application = InferenceApp(models, options)
        self.unbatched = dict(self._application.unbatched)
        self._listener = _listener(options.host, options.port)
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.address = f"http://{host}:{self._listener.getsockname()[1]}"
        self._server = DrainingServer(self._application, self._listener, options)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serves until SIGTERM or Ctrl-C, then drains; a second signal does not wait. In the main thread only. Raises
        KeyboardInterrupt after Ctrl-C.
        """
        seen: list[int] = []

        def end(number: int, frame: FrameType | None) -> None:
            self._server.force_exit = bool(seen)
            self._server.should_exit = True
            seen.append(number)

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._serve()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if signal.SIGINT in seen:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Serves in a thread."""
        self._thread = threading.Thread(target=self._serve, name="burnish-serve", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drains, and ends the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        else:
            self._listener.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()
            self._application.close()


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError, naming the address."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made: Any = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
    return made
