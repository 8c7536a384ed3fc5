"""The open inference protocol over real connections: answers, refusals that name a field, batches, the drain."""

from __future__ import annotations

import doctest
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.serve.options import ServeOptions
from burnish.serve.protocol import LENGTH_HEADER, RequestError, Signature
from burnish.serve.server import Server

X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)


def network(rows: Any = 2, over_rows: bool = False) -> Graph:
    """x [rows, 3], k [rows, 3] int64 -> y = exp(x), or softmax over the rows; z = k > 1."""
    b = GraphBuilder()
    x, k = b.input("x", (rows, 3)), b.input("k", (rows, 3), "int64")
    y = b.add("softmax", x, axis=0, name="y") if over_rows else b.add("exp", x, name="y")
    return b.build(y, b.add("greater", k, b.constant(np.array(1, np.int64)), name="z"))


class Client:
    """A connection that stays open."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._host = server.address.removeprefix("http://")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._connection = http.client.HTTPConnection(self._host, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
        given = self._headers | {key.replace("_", "-"): value for key, value in headers.items()}
        self._connection.request(method, path, body, given)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def infer(self, request: Any, model: str = "fixed", behind: bytes = b"", **headers: str) -> tuple[int, Any]:
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        length = {"inference_header_content_length": str(len(text))} if behind else {}
        status, body, _ = self.ask("POST", f"/v2/models/{model}/infer", text + behind, **length | headers)
        return status, json.loads(body)


def tensor(name: str, array: np.ndarray, datatype: str, binary: bool = False) -> dict[str, Any]:
    given = {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.tolist()}
    return {"name": name, "shape": [*array.shape], "datatype": datatype, **given}


def request_of(x: np.ndarray, binary: bool = False, **more: Any) -> dict[str, Any]:
    k = np.arange(x.size).reshape(x.shape)
    return {"inputs": [tensor("k", k, "INT64"), tensor("x", x, "FP32", binary)], **more}


def test_the_example_of_the_docstring_runs() -> None:
    (own,) = doctest.DocTestFinder(recurse=False).find(Server, globs={"bn": bn})
    assert own.examples and not doctest.DocTestRunner().run(own).failed


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ServeOptions(port=0, max_batch=4, max_wait_ms=1e6, max_body="100KB", max_elements=600)
    models = {
        "fixed": bn.compile(network(), rewrite=False),
        "open": bn.compile(network(dim("rows", 1, 300)), rewrite=False),
        "joined": bn.compile(network(dim("rows", 1, 300), over_rows=True), rewrite=False),
    }
    with Server(models, options) as made:
        yield made
    for model in models.values():
        model.close()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def test_health_metadata_and_versions(client: Client) -> None:
    assert [client.ask("GET", f"/v2/health/{each}")[0] for each in ("live", "ready")] == [200, 200]
    assert "binary_tensor_data" in json.loads(client.ask("GET", "/v2")[1])["extensions"]
    found = json.loads(client.ask("GET", "/v2/models/open")[1])
    assert found["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]}, {"name": "k", "datatype": "INT64", "shape": [-1, 3]}
    ]  # fmt: skip
    assert [each["datatype"] for each in found["outputs"]] == ["FP32", "BOOL"]
    assert client.ask("GET", "/v2/models/open/versions/1/ready")[0] == 200
    for path in ("/v2/models/open/versions/2", "/v2/models/closed/ready", "/v3"):
        assert client.ask("GET", path)[0] == 404
    assert client.ask("GET", "/v2/models/open/infer")[0] == 405


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_come_and_go_as_json_and_as_bytes(client: Client, binary: bool) -> None:
    request = request_of(X, binary, id="seven", outputs=[
        {"name": "z"}, {"name": "y", "parameters": {"binary_data": binary}},
    ])  # fmt: skip
    text = json.dumps(request).encode()
    length = {LENGTH_HEADER: str(len(text))} if binary else {}
    status, body, headers = client.ask(
        "POST", "/v2/models/fixed/versions/1/infer", text + (X.tobytes() if binary else b""), **length
    )
    size = int(headers.get(LENGTH_HEADER, len(body)))
    found = json.loads(body[:size])
    assert (status, found["id"], found["model_name"]) == (200, "seven", "fixed")
    z, y = found["outputs"]
    assert (z["name"], z["shape"], z["data"]) == ("z", [2, 3], [False, False, True, True, True, True])
    values = np.frombuffer(body[size:], np.float32) if binary else np.array(y["data"], np.float32)
    np.testing.assert_array_equal(values.reshape(y["shape"]), bn_exp(X))
    assert binary == ("parameters" in y)


def bn_exp(x: np.ndarray) -> Any:
    b = GraphBuilder()
    return bn.compile(b.build(b.add("exp", b.input("x", (2, 3)))), rewrite=False)(x)


def with_x(**changes: Any) -> dict[str, Any]:
    request = request_of(X)
    request["inputs"][1] |= changes
    return request


WRONG: list[tuple[Any, str]] = [
    (b"{", "body: found no JSON"),
    (b"[" * 100_000, "body: found no JSON"),
    ([], "body: found []; allowed: a JSON object"),
    ({}, "inputs: found null"),
    ({"inputs": [7]}, r"inputs[0]: found 7"),
    ({"inputs": [], "id": 7}, "id: found 7"),
    (request_of(X) | {"inputs": request_of(X)["inputs"][:1]}, "inputs: found none named 'x'"),
    ({"inputs": request_of(X)["inputs"] * 2}, "inputs[2].name: found k; allowed: each input once"),
    (with_x(name="v"), "inputs[1].name: found v; allowed: 'x', 'k'"),
    (with_x(datatype="FP64"), "inputs[1].datatype: found FP64; allowed: FP32"),
    (with_x(shape=[2, 4]), "inputs[1].shape: found [2, 4]; allowed: [2, 3]"),
    (with_x(shape=[2, -3]), "inputs[1].shape: found [2, -3]"),
    (with_x(shape="2,3"), "inputs[1].shape: found 2,3"),
    (with_x(data=[1, 2]), "inputs[1].data: found shape [2]; allowed: 6 numbers"),
    (with_x(data=[[1, 2, 3], [4]]), "inputs[1].data: found lists of different lengths"),
    (with_x(data=["a"] * 6), "inputs[1].data: found other values"),
    (with_x(data=[None] * 6), "inputs[1].data: found other values"),
    (with_x(data=7), "inputs[1].data: found 7; allowed: a list"),
    (with_x(parameters={"binary_data_size": 24}), "inputs[1].parameters.binary_data_size: found 24, and 0 bytes"),
    (with_x(parameters={"binary_data_size": 23}), "inputs[1].parameters.binary_data_size: found 23; allowed: 24"),
    (with_x(parameters={"shared_memory_region": "r"}), "inputs[1].parameters: found shared_memory_region"),
    (request_of(X) | {"outputs": [{"name": "q"}]}, "outputs[0].name: found q; allowed: 'y', 'z'"),
    (request_of(X) | {"outputs": []}, "outputs: found []"),
    (request_of(X) | {"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output: found 1"),
]


def test_malformed_requests_are_refused_by_the_name_of_the_field(client: Client) -> None:
    for request, message in WRONG:
        status, answer = client.infer(request)
        assert status == 400 and answer["error"].startswith(message), (message, answer)
    k = np.full((2, 3), 2**70, object)
    status, answer = client.infer({"inputs": [tensor("x", X, "FP32"), tensor("k", k, "INT64")]})
    assert status == 400 and answer["error"].startswith("inputs[1].data")
    status, answer = client.infer(request_of(X, binary=True), behind=X.tobytes() + b"more")
    assert status == 400 and answer["error"].startswith("body: found 4 bytes behind")
    for length in ("-1", "x", "99999", "9" * 30):
        status, answer = client.infer(request_of(X), inference_header_content_length=length)
        assert status == 400 and answer["error"].startswith(LENGTH_HEADER)
    assert client.infer(request_of(X))[0] == 200  # the connection is as it was


def test_an_integer_out_of_the_type_s_range_is_refused() -> None:
    class Spec:
        name, shape, dtype = "b", (2,), "uint8"

    body = json.dumps({"inputs": [tensor("b", np.array([1, 256]), "UINT8")]}).encode()
    with pytest.raises(RequestError, match=r"inputs\[0\].data: found 1 to 256; allowed: 0 to 255"):
        Signature("m", [Spec()], [Spec()]).read(body, None, 10)


def test_huge_requests_are_refused(client: Client, server: Server) -> None:
    status, answer = client.infer(request_of(np.ones((300, 3), np.float32)), "open")
    assert status == 400 and answer["error"].startswith("inputs[0].shape: found 900 elements; allowed: up to 600")
    host, port = server.address.removeprefix("http://").split(":")
    for head in (f"Content-Length: {1 << 40}", "Transfer-Encoding: chunked"):
        with socket.create_connection((host, int(port)), 30) as link:
            link.sendall(f"POST /v2/models/fixed/infer HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
            if "chunked" in head:
                link.sendall(b"186a1\r\n" + b"x" * 100_001)
            assert link.recv(100).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection((host, int(port)), 30) as link:
        link.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert link.recv(100).startswith(b"HTTP/1.1 400 ")


def test_slow_requests_are_ended() -> None:
    begun = b"POST /v2/models/fixed/infer HTTP/1.1\r\nHost: x\r\n"
    model = bn.compile(network(), rewrite=False)
    with Server({"fixed": model}, ServeOptions(port=0, read_seconds=0.1)) as server:
        host, port = server.address.removeprefix("http://").split(":")
        for part, status in ((begun + b"Content-Length: 99\r\n\r\n{", b" 408 "), (begun, b""), (b"", b"")):
            with socket.create_connection((host, int(port)), 30) as link:
                link.sendall(part)
                found = link.recv(1000)
                assert status in found[:20] and (b"connection: close" in found if status else not found)


def test_requests_that_wait_are_joined(server: Server) -> None:
    """Until a batch is full: they would wait for long otherwise."""
    rows = [np.full((n, 3), i, np.float32) for i, n in enumerate((1, 1, 2))]

    def ask(x: np.ndarray) -> Any:
        status, answer = Client(server).infer(request_of(x), "open")
        return status, answer["outputs"][0]["shape"], answer["outputs"][0]["data"]

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(ask, rows))
    for x, (status, shape, data) in zip(rows, found, strict=True):
        assert (status, tuple(shape)) == (200, x.shape)
        np.testing.assert_allclose(np.reshape(data, shape), np.exp(x), rtol=1e-6)
    text = Client(server).ask("GET", "/metrics")[1].decode()
    assert 'burnish_batch_rows_sum{model="open"} 4.0' in text and 'burnish_batch_rows_count{model="open"} 1.0' in text


def test_models_whose_rows_depend_on_each_other_are_not_joined(server: Server) -> None:
    assert server.unbatched == {
        "fixed": "its inputs and outputs have no open first extent in common",
        "joined": "a row of its results depends on others",
    }
    status, answer = Client(server).infer(request_of(X), "joined")
    np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 3)).sum(0), 1, rtol=1e-5)
    assert status == 200


def test_metrics_count_requests(client: Client) -> None:
    client.infer({})
    client.infer(request_of(X))
    text = client.ask("GET", "/metrics")[1].decode()
    lines = [f'burnish_{each}{{model="fixed"}} 0.0' for each in ("queue", "calls")]
    lines += ['burnish_requests_total{model="fixed",status="400"}', 'burnish_request_seconds_bucket{le="0.1",model="']
    assert not [line for line in lines if line not in text]


def test_a_token_is_needed_but_for_probes() -> None:
    model = bn.compile(network(), rewrite=False)
    with Server({"fixed": model}, ServeOptions(port=0, token="secret")) as server:
        without, wrong, right = (Client(server, token) for token in (None, "secreT", "secret"))
        assert without.ask("GET", "/v2/health/ready")[0] == 200
        for client in (without, wrong):
            assert client.infer(request_of(X))[0] == client.ask("GET", "/metrics")[0] == 401
        assert right.infer(request_of(X))[0] == right.ask("GET", "/v2/models/fixed")[0] == 200


def test_networks_are_refused_without_a_token() -> None:
    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(ParameterError, match=f"host: found '{host}' without a token"):
            ServeOptions(host=host)
    ServeOptions(host="0.0.0.0", token="secret")
    ServeOptions(host="localhost")
    with pytest.raises(ParameterError, match="max_batch: found 0"):
        ServeOptions(max_batch=0)


def test_a_call_that_fails_harms_no_other(server: Server) -> None:
    model = bn.compile(network(), rewrite=False)
    with Server({"fixed": model}, ServeOptions(port=0)) as own:
        client = Client(own)
        assert client.infer(request_of(X))[0] == 200
        model.close()
        status, answer = client.infer(request_of(X))
        assert status == 503 and "closed" in answer["error"]
        assert client.ask("GET", "/v2/health/live")[0] == 200


def test_a_full_queue_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = bn.compile(network(), rewrite=False)
    go = threading.Event()

    class Slow:
        inputs, outputs, calls_at_once = model.inputs, model.outputs, 1

        def __call__(self, *args: Any) -> Any:
            go.wait(30)
            return model(*args)

    slow: Any = Slow()
    with Server({"fixed": slow}, ServeOptions(port=0, max_queue=2)) as server, ThreadPoolExecutor(4) as threads:
        later = [threads.submit(lambda: Client(server).infer(request_of(X))[0]) for _ in range(4)]
        while sum(each.done() for each in later) < 1:  # one runs, two wait
            time.sleep(0.005)
        go.set()
        assert sorted(each.result(30) for each in later) == [200, 200, 200, 503]


def test_sigterm_loses_no_request(tmp_path: Path) -> None:
    b = GraphBuilder()
    w = b.constant(np.eye(700, dtype=np.float32))
    y = x = b.input("x", (700, 700))
    for _ in range(4):
        y = b.add("matmul", y, w)
    bn.compile(b.build(b.add("add", y, x)), rewrite=False).save(tmp_path / "m.bn")
    command = [sys.executable, "-m", "burnish", "serve", f"m={tmp_path / 'm.bn'}", "--port", "0", "--max-body", "3MB"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    host, port = process.stdout.readline().split()[0].removeprefix("http://").rstrip(":").split(":")
    given = np.random.default_rng(0).normal(size=(700, 700)).astype(np.float32)
    head = {"inputs": [tensor("x", given, "FP32", True)], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    counts = {"right": 0, "refused": 0}
    lock = threading.Lock()

    def load() -> None:
        link: http.client.HTTPConnection | None = None
        while True:
            if link is None:
                link = http.client.HTTPConnection(host, int(port), timeout=120)
                try:
                    link.connect()
                except ConnectionError:
                    break
            link.request("POST", "/v2/models/m/infer", text + given.tobytes(), {LENGTH_HEADER: str(len(text))})
            answer = link.getresponse()  # raises where the connection was ended without an answer
            body = answer.read()
            assert answer.status == 200
            values = np.frombuffer(body[int(answer.headers[LENGTH_HEADER]) :], np.float32)
            np.testing.assert_allclose(values, 2 * given.ravel(), rtol=1e-5)
            with lock:
                counts["right"] += 1
            if answer.headers.get("connection") == "close":
                link.close()
                link = None

    try:
        with ThreadPoolExecutor(6) as threads:
            loads = [threads.submit(load) for _ in range(6)]
            while counts["right"] < 12 and not any(each.done() for each in loads):
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            for each in loads:
                each.result(60)
        assert process.wait(30) == 0 and counts["right"] >= 12
    finally:
        process.kill()
