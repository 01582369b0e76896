"""Calls /test.Echo at an address under a name, in every way that gRPC has, in TLS with a file of authorities."""
import os
import sys
import threading

import grpc

address, name = sys.argv[1:3]
LIMIT = 60


def channel():
    options = [("grpc.default_authority", name), ("grpc.enable_http_proxy", 0)]
    if len(sys.argv) < 4:
        return grpc.insecure_channel(address, options)
    options.append(("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(open(sys.argv[3], "rb").read()), options)


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("no error")


def once(calls):
    for size in (1, 1000, 1_000_000):
        message = os.urandom(size)
        assert calls.unary_unary("/test.Echo/Once")(message, timeout=LIMIT) == b"east-1:" + message


def server_stream(calls):
    answers = list(calls.unary_stream("/test.Echo/Count")(b"2000", timeout=LIMIT))
    assert answers == [str(number).encode() for number in range(2000)]


def both_streams(calls):
    """Each message waits for the answer to the one before."""
    sent = [os.urandom(size) for size in (1, 50_000, 7, 1_000_000, 300_000)]
    answered, answers = threading.Semaphore(1), []

    def messages():
        for message in sent:
            assert answered.acquire(timeout=LIMIT)
            yield message

    for answer in calls.stream_stream("/test.Echo/Stream")(messages(), timeout=LIMIT):
        answers.append(answer)
        answered.release()
    assert answers == [b"east-1:" + message for message in sent]


def cancelled(calls):
    """The client cancels a call while both of its streams are open."""
    goes_on = threading.Event()

    def messages():
        yield b"first"
        goes_on.wait(LIMIT)

    call = calls.stream_stream("/test.Echo/Stream")(messages(), timeout=LIMIT)
    assert next(call) == b"east-1:first"
    call.cancel()
    goes_on.set()
    assert error_of(lambda: next(call)).code() == grpc.StatusCode.CANCELLED


def too_late(calls):
    error = error_of(lambda: calls.unary_unary("/test.Echo/Wait")(b"", timeout=2))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error


def errors(calls):
    error = error_of(lambda: calls.unary_unary("/test.Echo/Fail")(b"", timeout=LIMIT))
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not so"), error
    metadata = dict(error.trailing_metadata())
    assert (metadata["why"], metadata["details-bin"]) == ("because", bytes(range(256))), metadata
    error = error_of(lambda: calls.unary_unary("/test.Echo/Nothing")(b"", timeout=LIMIT))
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    answers = []
    error = error_of(lambda: answers.extend(calls.unary_stream("/test.Echo/Break")(b"one", timeout=LIMIT)))
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "lost"), error


def at_once(calls):
    """More calls than a connection has streams."""
    call = calls.unary_unary("/test.Echo/Once")
    waiting = [call.future(os.urandom(100), timeout=LIMIT) for _ in range(300)]
    assert all(len(future.result()) == 107 for future in waiting)


with channel() as calls:
    for way in (once, server_stream, both_streams, cancelled, too_late, errors, at_once):
        try:
            way(calls)
        except grpc.RpcError as error:
            sys.exit(f"{way.__name__}: {error.code().name}: {error.details()}")
print("all there", flush=True)
