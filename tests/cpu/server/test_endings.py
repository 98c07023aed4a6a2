"""How requests and servers end: clients that go, deadlines, signals, a full queue, a dead engine, a taken port."""

from __future__ import annotations

import concurrent.futures
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server_process import ServerProcess, events, serving

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "a b", "max_tokens": 1900, "ignore_eos": True}
FAILING = Path(__file__).with_name("failing_server.py")


def first_line(response: httpx.Response) -> str:
    return next(line for line in response.iter_lines() if line)


def test_a_client_that_leaves_its_stream_frees_its_blocks(server: ServerProcess) -> None:
    aborted = server.metric("request_success_total", finished_reason="abort")
    with server.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
        assert "text" in first_line(response)
    server.wait_until_idle(5)
    assert server.metric("request_success_total", finished_reason="abort") == aborted + 1


def test_a_client_that_leaves_before_its_answer_frees_its_blocks(server: ServerProcess) -> None:
    aborted = server.metric("request_success_total", finished_reason="abort")
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(COMPLETIONS, json={**LONG, "prompt": ["a b"] * 6, "n": 3}, timeout=0.3)
    server.wait_until_idle(5)
    assert server.metric("request_success_total", finished_reason="abort") == aborted + 18


def test_a_killed_client_frees_its_blocks(server: ServerProcess) -> None:
    code = (
        "import httpx, sys\n"
        f"with httpx.stream('POST', '{server.url}{COMPLETIONS}', json={{**{LONG!r}, 'stream': True}}) as response:\n"
        "    for line in response.iter_lines():\n"
        "        print(line, flush=True)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    with client.stdout as lines:
        assert "text" in lines.readline()
        client.kill()
    client.wait(10)
    server.wait_until_idle(5)


def test_a_deadline_ends_the_answer_and_a_full_queue_says_when_to_come_again(model: str) -> None:
    with serving(
        model, "--num-gpu-blocks-override", "200", "--max-num-seqs", "1", "--max-num-queued-reqs", "1",
        "--request-timeout", "0.7",
    ) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:  # fmt: skip
        answers = list(pool.map(lambda _: server.post(COMPLETIONS, {**LONG, "max_tokens": 2000}), range(8)))
        by_status: dict[int, list[httpx.Response]] = {}
        for answer in answers:
            by_status.setdefault(answer.status_code, []).append(answer)
        refused = by_status.pop(503)
        assert len(refused) >= 5
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        assert server.metric("admission_rejections_total", reason="queue_full") == len(refused)
        for answer in by_status.pop(200, ()):
            assert answer.json()["choices"][0]["finish_reason"] in ("abort", "length")
        for answer in by_status.pop(504, ()):
            assert "--request-timeout" in answer.json()["error"]["message"]
        assert not by_status
        server.wait_until_idle()


def preemptions_told(output: str) -> int:
    """Those with a line of their own, and those that were summed up."""
    summed = re.findall(r"Preempted (\d+) more", output)
    return output.count("Preempted cmpl-") + sum(map(int, summed))


def ask_many(server: ServerProcess) -> list[str]:
    """Texts of nine requests at once; every third is constrained."""

    def ask(number: int) -> str:
        body = {"prompt": f"{number} " * 8, "max_tokens": 120, "ignore_eos": True, "seed": number}
        if number % 3 == 0:
            body["structured_outputs"] = {"regex": "[a-f]{100,110}"}
            del body["ignore_eos"]
        text: str = server.post(COMPLETIONS, body).json()["choices"][0]["text"]
        assert number % 3 or re.fullmatch("[a-f]{100,110}", text)
        return text

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        return list(pool.map(ask, range(9)))


def test_a_full_pool_preempts_says_so_and_changes_no_answer(model: str) -> None:
    texts = []
    for blocks in ("400", "20"):
        with serving(model, "--num-gpu-blocks-override", blocks, "--max-model-len", "200") as server:
            texts.append(ask_many(server))
            server.wait_until_idle()
            preemptions = server.metric("num_preemptions_total")
            assert server.metric("request_num_preemptions_sum") == preemptions
            assert (preemptions > 0) == (blocks == "20")
            assert server.stop() == 0
        assert preemptions_told(server.output) == preemptions
    assert texts[0] == texts[1]


@pytest.mark.parametrize("allocator", ["reserved", "pow2"])
def test_the_same_server_on_contiguous_reservations(model: str, allocator: str) -> None:
    with serving(
        model, "--num-gpu-blocks-override", "64", "--max-model-len", "1000", "--allocator", allocator
    ) as server:
        texts = ask_many(server)
        assert all(texts)
        server.wait_until_idle()
        assert server.metric("num_preemptions_total") == 0, "what is reserved is never taken away"
        with server.http.stream(
            "POST", COMPLETIONS, json={**LONG, "max_tokens": 900, "stream": True}
        ) as response:
            lines = response.iter_lines()
            assert "text" in next(lines)
            assert server.metric("kv_waste_tokens", kind="reserved") > 100
            assert server.http.get("/state").json()["allocator"] == allocator
        server.wait_until_idle()


def test_thrashing_pauses_admission_and_says_so(model: str) -> None:
    with serving(
        model, "--num-gpu-blocks-override", "20", "--max-model-len", "200", "--thrash-preemptions", "2",
    ) as server:  # fmt: skip
        assert all(ask_many(server))
        server.wait_for(r"Admission paused: \d+ preemptions within 64 steps; \d+ requests run on")
        server.wait_for(r"Admission resumed after \d+ steps")
        server.wait_until_idle()


def test_sigterm_lets_running_requests_end_and_takes_no_new_ones(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "200") as server:
        with server.http.stream(
            "POST", COMPLETIONS, json={**LONG, "max_tokens": 1000, "stream": True}
        ) as response:
            lines = response.iter_lines()
            assert "text" in next(lines)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("SIGTERM: 1 request may end")
            turned_away = httpx.post(f"{server.url}{COMPLETIONS}", json=LONG)
            assert turned_away.status_code == 503
            assert "retry-after" in turned_away.headers
            rest = events("\n".join(lines))
        assert rest[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.output


def test_sigterm_aborts_what_does_not_end_in_time(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "200", "--shutdown-timeout", "0.1") as server:
        with server.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            assert "text" in next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = events("\n".join(lines))
        assert rest[-1]["choices"][0]["finish_reason"] == "abort"
        assert server.process.wait(20) == 0
        assert "Aborting 1 request" in server.output


def test_a_second_sigterm_ends_at_once(model: str) -> None:
    with (
        serving(model, "--num-gpu-blocks-override", "200") as server,
        server.http.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response,
    ):
        lines = response.iter_lines()  # kept: a generator that is dropped closes the connection
        assert "text" in next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("SIGTERM: 1 request may end")
        assert server.stop(signal.SIGTERM, 3) == 128 + signal.SIGTERM


def test_a_port_in_use_is_one_line(model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(Path(sys.executable).with_name("octavo")), "serve", model, "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"port {port} on 127.0.0.1 is in use" in line


@pytest.fixture
def dying(model: str) -> Iterator[ServerProcess]:
    with serving(model, "--num-gpu-blocks-override", "200", script=FAILING) as server:
        yield server


def test_a_dead_engine_tells_everyone_and_ends_the_process(dying: ServerProcess) -> None:
    """The executor of this server fails at its first step with two requests."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", f"{dying.url}{COMPLETIONS}", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            assert "text" in next(lines)
            whole = pool.submit(dying.post, COMPLETIONS, LONG)
            told = events("\n".join(lines))
        assert told[-1]["error"]["code"] == 500
        assert whole.result().status_code == 500
        assert "injected" not in whole.result().text, "what went wrong is for the log"
    assert httpx.get(f"{dying.url}/health").status_code == 503
    assert httpx.post(f"{dying.url}{COMPLETIONS}", json=LONG).status_code == 503
    assert dying.process.wait(20) == 1
    dying.wait_for("The engine has died.*RuntimeError.*injected")


def test_the_recording_of_an_engine_that_died_replays(model: str, tmp_path: Path) -> None:
    from octavo.simulation.replay import replay_recording
    from octavo.telemetry.recording_reader import Abandoned, Added, Recording

    file = tmp_path / "run.jsonl"
    with serving(model, "--num-gpu-blocks-override", "200", "--record", str(file), script=FAILING) as server:
        constrained = {"prompt": "a", "max_tokens": 30, "structured_outputs": {"regex": "[a-f]{9}"}}
        assert server.post(COMPLETIONS, constrained).status_code == 200
        assert server.post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 9}).status_code == 500
        assert server.process.wait(20) == 1
    items = list(Recording(file).items())
    assert isinstance(items[-1], Abandoned)
    assert [item.constrained for item in items if isinstance(item, Added)] == [True, False, False]
    steps, differences = replay_recording(file)
    assert differences == []
    assert steps > 9


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_ends_the_recording_alone(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "200", "--record", "/dev/full") as server:
        for _ in range(3):
            assert server.post(COMPLETIONS, {**LONG, "max_tokens": 400}).status_code == 200
        assert server.stop() == 0
        server.wait_for("Recording stopped: cannot write /dev/full: No space left on device")


def test_a_recording_can_be_read_back(model: str, tmp_path: Path) -> None:
    from octavo.telemetry.recording_reader import Recording, Stepped

    file = tmp_path / "run.jsonl.gz"
    with serving(model, "--num-gpu-blocks-override", "200", "--record", str(file)) as server:
        assert server.post(COMPLETIONS, {**LONG, "max_tokens": 5}).status_code == 200
        assert server.stop() == 0
    steps = [item.record for item in Recording(file).items() if isinstance(item, Stepped)]
    assert sum(len(step.result.token_ids) for step in steps) == 5


def test_nobody_reads_the_log(model: str) -> None:
    """A full pipe holds up neither requests nor the end."""
    program = str(Path(sys.executable).with_name("octavo"))
    process = subprocess.Popen(
        [program, "serve", model, "--port", "0", "--num-gpu-blocks-override", "200", "--verbose"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        ready = next(
            found for line in process.stderr if (found := re.search(r"Ready in .* on (http\S+)", line))
        )
        with httpx.Client(base_url=ready[1], timeout=30) as http:
            for _ in range(8):  # 128 admissions and ends each: more than a pipe holds
                body = {"prompt": ["a"] * 128, "max_tokens": 1}
                assert http.post(COMPLETIONS, json=body).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()
