"""ASGI application of the open inference protocol: routes, the token, limits, metrics."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

import prometheus_client
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import burnish
from burnish.errors import ClosedError, InputError
from burnish.serve.batching import Scheduler, ServedModel, rows_of_batches
from burnish.serve.options import ServeOptions
from burnish.serve.protocol import LENGTH_HEADER, InferRequest, RequestError, Signature

OPEN = ("/v2/health/live", "/v2/health/ready")  # to the probes of an orchestrator, without a token
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
LARGE = 1 << 18  # bytes of JSON that are read by another thread, so that the server answers probes meanwhile

Handler = Callable[[Request], Awaitable[Response]]


class Metrics:
    """Counts and times of requests, as Prometheus reads them."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        name = ["model"]
        self.requests = prometheus_client.Counter(
            "burnish_requests", "Requests for inference, by the status of the answer.", [*name, "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = prometheus_client.Histogram(
            "burnish_request_seconds", "Seconds from a request's first line to its answer.", name, buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.rows = prometheus_client.Histogram(
            "burnish_batch_rows", "First extents of calls whose requests can be joined, else 1.", name, buckets=ROWS,
            registry=registry,
        )  # fmt: skip
        waiting = prometheus_client.Gauge("burnish_queue", "Requests that wait for a call.", name, registry=registry)
        running = prometheus_client.Gauge("burnish_calls", "Calls that run.", name, registry=registry)
        for each in models.values():
            waiting.labels(each.name).set_function(lambda each=each: len(each.waiting))
            running.labels(each.name).set_function(lambda each=each: each.running)

    def text(self) -> bytes:
        """All values."""
        return bytes(prometheus_client.generate_latest(self._registry))


class InferenceApp:
    """ASGI application that serves ``models``. ``draining``: no request is awaited any more; those that come are
    answered, and end their connections.
    """

    def __init__(self, models: Mapping[str, Any], options: ServeOptions) -> None:
        self._options, self.draining = options, False
        self._signatures = {name: Signature(name, m.inputs, m.outputs) for name, m in models.items()}
        self._models: dict[str, ServedModel] = {}
        self.unbatched: dict[str, str] = {}
        for name, model in models.items():
            rows, why = rows_of_batches(model, options.max_batch)
            self._models[name] = ServedModel(name, model, rows)
            self.unbatched |= {name: why} if why else {}
        self._metrics = Metrics(self._models)
        self._scheduler = Scheduler(
            [*self._models.values()], options.threads, options.max_wait_ms / 1e3,
            lambda name, rows: self._metrics.rows.labels(name).observe(rows),
        )  # fmt: skip
        own = "/v2/models/{name}"
        answers: list[tuple[str, str, Handler]] = [
            ("GET", "/v2/health/live", self._live),
            ("GET", "/v2/health/ready", self._ready),
            ("GET", "/v2", self._server),
            ("GET", "/metrics", self._metrics_text),
            *((method, f"{own}{version}{end}", handler)
              for version in ("", "/versions/{version}")
              for method, end, handler in (
                  ("GET", "", self._model), ("GET", "/ready", self._ready), ("POST", "/infer", self._infer))),
        ]  # fmt: skip
        guarded = [(method, path, self._answered(handler)) for method, path, handler in answers]
        self._app = Starlette(routes=[Route(path, handler, methods=[method]) for method, path, handler in guarded])
        self._direct = {
            (method, path.format(name=name, version="1")): (handler, {"name": name})
            for method, path, handler in guarded if "{name}" in path for name in models
        }  # fmt: skip

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI calls it."""
        if scope["type"] == "http" and not self._may(scope):
            refusal = JSONResponse({"error": "token: missing or wrong"}, 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        direct = self._direct.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if direct is None:
            await self._app(scope, receive, send)
            return
        handler, scope["path_params"] = direct  # without a search for the route, which takes as long as the rest
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def close(self) -> None:
        """Ends the threads."""
        self._scheduler.close()

    def _may(self, scope: Any) -> bool:
        """Whether a request shows the token, or needs none."""
        if not self._options.token or scope["path"] in OPEN:
            return True
        given = next((value for key, value in scope["headers"] if key == b"authorization"), b"")
        return hmac.compare_digest(given, b"Bearer " + self._options.token.encode())

    def _answered(self, handler: Handler) -> Handler:
        """The handler, whose refusals are answers."""

        async def answer(request: Request) -> Response:
            began = perf_counter()
            name = str(request.path_params.get("name", ""))
            try:
                if name and name not in self._models:
                    raise RequestError(f"model: found {name!r}; allowed: {', '.join(self._models)}", 404)
                if request.path_params.get("version", "1") != "1":
                    raise RequestError(f"version: found {request.path_params['version']!r}; allowed: 1", 404)
                response = await handler(request)
            except RequestError as error:
                response = JSONResponse({"error": str(error)}, error.status)
            except InputError as error:
                response = JSONResponse({"error": str(error)}, 400)
            except ClosedError as error:
                response = JSONResponse({"error": str(error)}, 503)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it
            except Exception as error:
                response = JSONResponse({"error": f"the call failed: {type(error).__name__}: {error}"}, 500)
            if response.status_code in (408, 413) or self.draining:
                response.headers["connection"] = "close"  # what is left of the request is not read
            if request.method == "POST" and name in self._models:
                self._metrics.requests.labels(name, str(response.status_code)).inc()
                self._metrics.seconds.labels(name).observe(perf_counter() - began)
            return response

        return answer

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        return JSONResponse({"ready": not self.draining}, 503 if self.draining else 200)

    async def _server(self, request: Request) -> Response:
        extensions = ["binary_tensor_data"]
        return JSONResponse({"name": "burnish", "version": burnish.__version__, "extensions": extensions})

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._signatures[request.path_params["name"]].metadata())

    async def _infer(self, request: Request) -> Response:
        name = request.path_params["name"]
        body = await self._body(request)
        signature = self._signatures[name]
        given = body, request.headers.get(LENGTH_HEADER), self._options.max_elements
        found: InferRequest
        if given[1] is None and len(body) > LARGE:
            found = await asyncio.to_thread(signature.read, *given)
        else:
            found = signature.read(*given)
        results = await self._scheduler.run(self._models[name], found.arrays, self._options.max_queue)
        content, headers = signature.answer(found, results)
        return Response(content, headers=headers)

    async def _body(self, request: Request) -> bytes:
        """The body of a request. Raises RequestError for one that is too long or comes too slowly."""
        limit, seconds = self._options.body_bytes, self._options.read_seconds
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > limit:
            raise RequestError(f"body: found {announced} bytes; allowed: up to {limit}", 413)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise RequestError(f"body: found more than {limit} bytes; allowed: up to that", 413)
                    parts.append(part)
        except TimeoutError:
            raise RequestError(f"body: not all of it came in {seconds} s; allowed: all", 408) from None
        whole = [part for part in parts if part]
        return whole[0] if len(whole) == 1 else b"".join(whole)
