"""checkpoint-engine serve: ranks as services, told over HTTP, checked against the description that they serve."""
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import threading

import pytest

from conftest import run, start, wait_for
from test_program import free_port


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=60):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def matches(schema, value, schemas):
    """Whether `value` is what `schema` describes; the part of JSON schema that the description uses."""
    if "oneOf" in schema:
        return sum(matches(each, value, schemas) for each in schema["oneOf"]) == 1
    if "$ref" in schema:
        return matches(schemas[schema["$ref"].rsplit("/", 1)[1]], value, schemas)
    if value is None:
        return schema.get("nullable", False)
    if schema["type"] == "object":
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not isinstance(value, dict) or any(name not in value for name in schema.get("required", [])):
            return False
        described = {name: properties.get(name, others) for name in value}
        return all(each if isinstance(each, bool) else matches(each, value[name], schemas) for name, each in described.items())
    if schema["type"] == "array":
        return isinstance(value, list) and all(matches(schema["items"], each, schemas) for each in value)
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    return isinstance(value, kinds[schema["type"]])


class Service:
    """One rank that serves on a Unix socket or a TCP port; every answer, and what it was an answer to, is compared with the
    description.
    """

    def __init__(self, folder, rank, size, port, *arguments, address=None):
        self.socket = None if address else folder / f"rank{rank}.sock"
        self.ready = folder / f"rank{rank}.ready"
        where = ("--listen", address) if address else ("--uds", folder / "rank{rank}.sock")
        self.process = start("serve", *where, "--device", "host", "--job", folder.name, "--ready-file", self.ready, *arguments,
                             env={"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        self.description = None

    def wait(self):
        wait_for(lambda: self.ready.exists() or self.process.poll() is not None, what="the service")
        assert self.process.poll() is None, self.process.stdout.read()
        self.address = self.ready.read_text().strip()
        return self

    def ask(self, method, path, body=None, token=None):
        """Status and body (JSON where it is JSON)."""
        if self.socket:
            connection = UnixConnection(self.socket)
        else:
            connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        value = json.loads(text) if text and "json" in answer.headers["Content-Type"] else text
        self.check(method, path, body, answer.status, value)
        return answer.status, value

    def check(self, method, path, body, status, value):
        if path == "/openapi.json":
            return
        if self.description is None:
            self.description = self.ask("GET", "/openapi.json")[1]
        pattern = "/".join("{name}" if i == 3 and path.startswith("/v1/checkpoints/") else part
                           for i, part in enumerate(path.split("/")))
        call, components = self.description["paths"][pattern][method.lower()], self.description["components"]
        if status == 200 and "requestBody" in call:
            schema = call["requestBody"]["content"]["application/json"]["schema"]
            assert matches(schema, body, components["schemas"]), (path, body)
        response = call["responses"][str(status)]
        if "$ref" in response:
            response = components["responses"][response["$ref"].rsplit("/", 1)[1]]
        if "content" not in response:
            assert value == "", (path, value)
        elif "application/json" in response["content"]:
            assert matches(response["content"]["application/json"]["schema"], value, components["schemas"]), (path, value)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=20)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0]


@pytest.fixture
def services(tmp_path):
    made = []

    def make(count, *arguments, folder=tmp_path, **options):
        port = free_port()
        made.extend(Service(folder, rank, count, port, *arguments, **options) for rank in range(count))
        return [service.wait() for service in made[-count:]]

    yield make
    for service in made:
        service.stop()


def ask_all(services, *arguments, bodies=None):
    """The same call to every rank at once, as trainers do; the answers by rank."""
    answers = [None] * len(services)

    def ask(rank):
        body = bodies[rank] if bodies else None
        answers[rank] = services[rank].ask(*arguments, *([body] if bodies else []))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(services))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def files_of(checkpoint, rank, size):
    return [str(path) for path in sorted(checkpoint.glob("*.safetensors"))[rank::size]]


def load(services, name, checkpoint):
    size = len(services)
    bodies = [{"files": files_of(checkpoint, rank, size)} for rank in range(size)]
    assert ask_all(services, "POST", f"/v1/checkpoints/{name}/files", bodies=bodies) == [(200, "")] * size
    assert ask_all(services, "POST", f"/v1/checkpoints/{name}/gather-metas") == [(200, "")] * size


def update_bodies(engine, size, path="/collective_rpc"):
    """As the field's callers: the first rank calls the engine, the others take part."""
    quiet = {"ranks": [], "update_url": None, "inference_group_ranks": [], "timeout": 60.0, "uds": None}
    calls = {**quiet, "update_url": f"http://localhost{path}", "inference_group_ranks": list(range(size)), "uds": str(engine.socket)}
    return [calls] + [quiet] * (size - 1)


@pytest.mark.parametrize("path", ["/collective_rpc", "/update_weights_from_ipc"])
def test_two_services_update_an_engine_again_and_again(checkpoint, receivers, services, path):
    engine = receivers("--expect", checkpoint)
    ranks = services(2)
    assert stat.S_IMODE(os.stat(ranks[1].socket).st_mode) == 0o600
    load(ranks, "step%201", checkpoint)
    for count in (1, 2):
        answers = ask_all(ranks, "POST", "/v1/checkpoints/step%201/update", bodies=update_bodies(engine, 2, path))
        assert answers == [(200, "")] * 2
        for rank, service in enumerate(ranks):
            status = service.ask("GET", "/v1/status")[1]
            assert status["rank"] == rank and status["checkpoints"][0]["name"] == "step 1"
            assert status["metas"] == {"checkpoint": "step 1", "loaded": False}
            assert status["last_update"]["loaded_bytes"] == status["last_update"]["total_bytes"] > 0
            assert f'updates_total{{outcome="ok"}} {count}' in service.ask("GET", "/metrics")[1]
    assert engine.process.poll() is None, "every update was what --expect says"
    status, metas = ranks[0].ask("GET", "/v1/metas")
    assert status == 200 and sorted(metas) == ["0", "1"]
    assert all(buffer["metas"] for entry in metas.values() for buffer in entry["memory_buffer_metas_list"])
    assert ask_all(ranks, "DELETE", "/v1/checkpoints/step%201") == [(200, "")] * 2
    assert [status for status, _ in ask_all(ranks, "POST", "/v1/checkpoints/step%201/update", bodies=[{}, {}])] == [409, 409]
    assert ranks[0].ask("DELETE", "/v1/checkpoints/step%201") == (200, ""), "freed already"
    for service in reversed(ranks):
        log = service.stop()
        assert service.process.returncode == 0, log
        assert not service.socket.exists()


def test_a_failed_update_says_why_on_every_rank_and_the_next_one_works(checkpoint, receivers, services, tmp_path):
    engine = receivers("--expect", checkpoint)
    ranks = services(2)
    load(ranks, "a", checkpoint)
    bodies = update_bodies(engine, 2)
    bodies[0] = {**bodies[0], "uds": str(tmp_path / "nobody.sock")}
    for status, value in ask_all(ranks, "POST", "/v1/checkpoints/a/update", bodies=bodies):
        assert status == 500 and "nobody.sock" in value["error"]["message"], value
    assert ask_all(ranks, "POST", "/v1/checkpoints/a/update", bodies=update_bodies(engine, 2)) == [(200, "")] * 2


def test_it_answers_while_an_update_runs_and_refuses_a_second(checkpoint, services, tmp_path):
    (service,) = services(1)
    load([service], "a", checkpoint)
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        body = {"update_url": "http://localhost/collective_rpc", "uds": str(tmp_path / "hangs.sock"), "timeout": 60}
        answer = []
        first = threading.Thread(target=lambda: answer.append(service.ask("POST", "/v1/checkpoints/a/update", body)))
        first.start()
        wait_for(lambda: (service.ask("GET", "/v1/status")[1]["update"] or {}).get("workers"), what="the engine's call")
        assert service.ask("GET", "/v1/healthz") == (200, "")
        status, value = service.ask("POST", "/v1/checkpoints/a/update", {})
        assert status == 409 and "under way" in value["error"]["message"]
        service.process.send_signal(signal.SIGTERM)
        first.join()
    assert answer[0][0] == 500 and "interrupted" in answer[0][1]["error"]["message"]
    # It may still wait a little for a worker that the engine may have sent on its way.
    service.process.wait(timeout=20)


def test_metas_go_from_one_job_to_another_in_the_fields_form(checkpoint, receivers, services, tmp_path):
    for name in ("owners", "readers"):
        (tmp_path / name).mkdir()
    owners = services(2, folder=tmp_path / "owners")
    (reader,) = services(1, folder=tmp_path / "readers")
    assert reader.ask("GET", "/v1/metas") == (200, {}), "nothing was gathered"
    load(owners, "step%201", checkpoint)
    metas = owners[0].ask("GET", "/v1/metas")[1]
    tensor = metas["0"]["memory_buffer_metas_list"][0]["metas"][0]
    assert tensor["dtype"].startswith("torch.") and tensor["aligned_size"] % 256 == 0
    # What the field's models keep of it, and no more.
    passed_on = {rank: {name: entry[name] for name in ("p2p_store_addr", "memory_buffer_metas_list", "rdma_device")}
                 for rank, entry in metas.items()}
    assert reader.ask("POST", "/v1/metas", passed_on) == (200, "")
    assert reader.ask("GET", "/v1/status")[1]["metas"] == {"checkpoint": "step 1", "loaded": True}
    assert reader.ask("GET", "/v1/metas") == (200, metas)
    engine = receivers("--expect", checkpoint, workers=1)
    assert reader.ask("POST", "/v1/checkpoints/step%201/update", update_bodies(engine, 1)[0]) == (200, "")
    of_the_field = {"0": {"p2p_store_addr": "10.0.0.7:12345", "rdma_device": "mlx5_0", "memory_buffer_metas_list": [
        {"metas": [{"name": "w", "dtype": "torch.bfloat16", "shape": [2, 3], "aligned_size": 256}], "ptr": 140001, "size": 256}]}}
    status, value = reader.ask("POST", "/v1/metas", of_the_field)
    assert status == 400 and "Mooncake" in value["error"]["message"], value
    assert reader.ask("POST", "/v1/metas", {})[0] == 400


def test_tcp_and_tokens(checkpoint, services, tmp_path):
    done = run("serve", "--listen", "0.0.0.0:0")
    assert done.returncode == 2 and "--token-file" in done.stderr
    assert run("serve").returncode == 2
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    (service,) = services(1, "--token-file", token, "--allow-path", checkpoint, address="127.0.0.1:0")
    service.description = service.ask("GET", "/openapi.json", token="open sesame")[1]
    assert service.ask("GET", "/v1/healthz") == (200, "")
    assert service.ask("GET", "/v1/status")[0] == 401
    assert service.ask("GET", "/v1/status", token="open")[0] == 401
    assert service.ask("GET", "/v1/status", token="open sesame")[0] == 200
    inside, outside = files_of(checkpoint, 0, 1)[0], tmp_path / "outside.safetensors"
    outside.write_bytes(open(inside, "rb").read())
    path = "/v1/checkpoints/a/files"
    status, value = service.ask("POST", path, {"files": [str(outside)]}, token="open sesame")
    assert status == 403 and "--allow-path" in value["error"]["message"]
    assert service.ask("POST", path, "{", token="open sesame")[0] == 400
    assert service.ask("POST", path, {"files": [inside]}, token="open sesame") == (200, "")
    assert service.ask("POST", path, {"files": [inside]}, token="open sesame")[0] == 409


def test_the_engines_key_is_for_nobody_who_can_reach_a_port(tmp_path):
    key = tmp_path / "key"
    key.write_text("ENGINE-KEY\n")
    key.chmod(0o600)
    done = run("serve", "--listen", "127.0.0.1:0", "--api-key-file", key)
    assert done.returncode == 2
    for way_out in ("--engine-endpoint", "--token-file", "--uds"):
        assert way_out in done.stderr


def test_a_long_body_as_curl_sends_it(services):
    (service,) = services(1)
    body = json.dumps({"files": [f"/no/such/part-{i:05}-of-00200.safetensors" for i in range(200)]})
    assert len(body) > 8192
    connection = UnixConnection(service.socket)
    connection.request("POST", "/v1/checkpoints/a/files", body,
                       {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    assert answer.status == 404 and b"/no/such/part-00000" in answer.read()
    connection.close()


def test_slow_connections_keep_nobody_from_knowing_how_it_goes(services):
    (service,) = services(1)
    slow = []
    for i in range(60):
        connection = UnixConnection(service.socket)
        connection.connect()
        # Nothing, half of a head, half of a body.
        connection.sock.sendall((b"", b"GET /v1/hea", b"POST /v1/metas HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")[i % 3])
        slow.append(connection)
    for path in ("/v1/healthz", "/v1/status"):
        assert service.ask("GET", path)[0] == 200
    for connection in slow:
        connection.close()
