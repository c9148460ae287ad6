"""Tokens, admission, limits, listening and metrics: each by itself."""

from __future__ import annotations

import socket

import pytest

from vitrail.errors import ResourceError, UsageError
from vitrail.serve import auth, server
from vitrail.serve.admission import AdmissionControl
from vitrail.serve.auth import BearerTokens, read_tokens
from vitrail.serve.http_errors import HttpError, encode_json
from vitrail.serve.limits import ServerLimits
from vitrail.serve.prometheus import ServerMetrics
from vitrail.serve.server import bind_socket, choose_model_name, get_listener_url, is_public

LONG = "a-token-of-some-length"


def test_only_a_bearer_of_a_known_token_is_let_in():
    found = BearerTokens((LONG, LONG + "2"))
    assert found.is_allowed(b"Bearer " + LONG.encode()) and found.is_allowed(b"bearer  " + LONG.encode() + b"2")
    for wrong in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + LONG.encode(),
        LONG.encode(),
        b"Bearer " + LONG[:-1].encode(),
    ):
        assert not found.is_allowed(wrong), wrong
    assert BearerTokens().is_allowed(b"") and not BearerTokens()


def test_e19_tokens_are_compared_in_constant_time_and_kept_as_hashes(monkeypatch):
    """E19."""
    seen = []
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    found = BearerTokens((LONG, LONG + "2"))
    found.is_allowed(b"Bearer nonsense")
    assert len(seen) == 2 and {len(one) for pair in seen for one in pair} == {32}
    assert LONG not in repr(vars(found))


def test_tokens_come_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "tokens.txt"
    file.write_text(f"# of the ward\n{LONG}\n\n  {LONG}2  \n")
    assert read_tokens(file, {}).is_allowed(f"Bearer {LONG}2".encode())
    assert read_tokens(None, {"VITRAIL_TOKEN": LONG}).is_allowed(f"Bearer {LONG}".encode())
    assert not read_tokens(None, {})
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="holds no token"):
        read_tokens(file, {})
    with pytest.raises(UsageError, match="must be a text file"):
        read_tokens(tmp_path / "absent", {})
    with pytest.raises(UsageError, match="has 5 characters, and one of fewer than 16"):
        read_tokens(None, {"VITRAIL_TOKEN": "short"})
    with pytest.raises(UsageError, match="spaces or letters"):
        BearerTokens(("sixteen letters and ü",))


def test_admission_counts_and_says_when_to_come_again():
    door = AdmissionControl(
        ServerLimits(
            max_waiting_images=64, max_requests_per_client=2, max_tasks=1, max_body_bytes=10, max_total_body_bytes=100
        ),
        lambda: 0.1,
    )
    with door.admit_images(60), pytest.raises(HttpError, match="60 pictures wait") as full, door.admit_images(5):
        pass
    assert (full.value.status, full.value.retry_after) == (503, 6) and door.num_images == 0
    with door.admit_client("a"), door.admit_client("a"), door.admit_client("b"):
        with pytest.raises(HttpError, match="2 requests of this address") as busy, door.admit_client("a"):
            pass
        assert (busy.value.status, busy.value.retry_after) == (429, 1)
    with door.admit_client("a"), door.admit_task(), pytest.raises(HttpError, match="1 explanations"), door.admit_task():
        pass
    door.reserve_bytes(90)
    with pytest.raises(HttpError, match="hold 90 bytes") as large:
        door.reserve_bytes(11)
    assert large.value.status == 503 and not door._clients
    door.release_bytes(90)
    door.reserve_bytes(100)


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match=r"deadline must be more than 0\. Got 0"):
        ServerLimits(deadline=0)
    with pytest.raises(UsageError, match="would not fit into the 67,108,864"):
        ServerLimits(max_body_bytes=2**28)
    with pytest.raises(UsageError, match="64 pictures would not fit among the 10"):
        ServerLimits(max_waiting_images=10)


def test_e13_a_port_that_is_taken_is_named_with_another(monkeypatch):
    """E13."""
    with bind_socket("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=rf"Port {port} is used by another program; try --port {port + 1}\."):
            bind_socket("127.0.0.1", port)
    with pytest.raises(UsageError, match="must be an address of this machine"):
        bind_socket("x" * 64, 0)
    with pytest.raises(UsageError, match="must be an address of this machine"):
        bind_socket("192.0.2.1", 0)
    with pytest.raises(UsageError, match=r"--port must lie in 0\.\.65535\. Got 70000"):
        bind_socket("127.0.0.1", 70000)

    def forbidden(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(server.socket, "socket", type("Closed", (socket.socket,), {"bind": forbidden}))
    with pytest.raises(ResourceError, match=r"Permission is missing for port 80; .* Try --port 8080"):
        bind_socket("127.0.0.1", 80)


def test_addresses_are_shown_as_a_browser_takes_them():
    with bind_socket("127.0.0.1", 0) as here, bind_socket("0.0.0.0", 0) as everywhere:
        assert get_listener_url(here) == f"http://127.0.0.1:{here.getsockname()[1]}" and not is_public(here)
        assert get_listener_url(everywhere).startswith("http://127.0.0.1:") and is_public(everywhere)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_e13_ipv6_is_an_address_like_any_other():
    """E13."""
    with bind_socket("::1", 0) as here:
        assert get_listener_url(here).startswith("http://[::1]:") and not is_public(here)


def test_e21_metrics_stay_few_whatever_is_asked():
    """E21."""
    gauges = {"vitrail_ready": ("Ready.", 1.0), "vitrail_deaths_total": ("Deaths.", 2)}
    found = ServerMetrics(["/predict"], lambda: gauges)
    before = len(found.format_text().splitlines())
    for number in range(1000):
        found.count_request(f"/{number}", 404, 0.01)
    found.count_request("/predict", 200, 0.3)
    found.count_batch(3, 0.2)
    text = found.format_text().decode()
    assert len(text.splitlines()) == before + 2
    assert 'vitrail_requests_total{path="other",status="404"} 1000' in text
    assert 'vitrail_request_seconds_bucket{le="0.25",path="/predict"} 0' in text
    assert 'vitrail_request_seconds_bucket{le="+Inf",path="/predict"} 1' in text
    assert 'vitrail_batch_pictures_bucket{le="4.0"} 1' in text and "# TYPE vitrail_deaths_total counter" in text


def test_e20_json_has_no_word_for_nan():
    """E20."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json({"probability": float("nan")})
    assert encode_json({"a": 0.1 + 0.2}) == b'{"a":0.30000000000000004}'


def test_models_are_called_as_their_folders(tmp_path):
    (tmp_path / "my run" / "model").mkdir(parents=True)
    assert choose_model_name(str(tmp_path / "my run"), "") == "my-run"
    assert choose_model_name(str(tmp_path / "my run" / "model"), "") == "my-run"
    assert choose_model_name("hf:me/flowers@abc", "") == "flowers" and choose_model_name("x", "cells.v2") == "cells.v2"
    with pytest.raises(UsageError, match="--name may hold letters"):
        choose_model_name("x", "a/b")
