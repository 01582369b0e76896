"""Calls /test.Echo at an address under a name: once, and in a stream whose every message waits for the answer before.

With a third word, waits at the end of the calls for a line, so that the connection can be looked at.
"""
import os
import sys
import threading

import grpc

address, name = sys.argv[1:3]
options = [("grpc.default_authority", name), ("grpc.enable_http_proxy", 0)]
with grpc.insecure_channel(address, options=options) as channel:
    try:
        once = channel.unary_unary("/test.Echo/Once")
        for size in (1, 1000, 1_000_000):
            message = os.urandom(size)
            answer = once(message, timeout=60)
            assert answer == b"east-1:" + message, f"{len(answer)} bytes for {size}"
        stream = channel.stream_stream("/test.Echo/Stream")
        sent = [os.urandom(size) for size in (1, 50_000, 7, 1_000_000, 300_000)]
        answered, answers = threading.Semaphore(1), []

        def messages():
            for message in sent:
                answered.acquire()
                yield message

        for answer in stream(messages(), timeout=60):
            answers.append(answer)
            answered.release()
        assert answers == [b"east-1:" + message for message in sent]
        print("all there", flush=True)
        if len(sys.argv) > 3:
            sys.stdin.readline()
            message = os.urandom(2_000_000)
            assert once(message, timeout=60) == b"east-1:" + message
            print("and again", flush=True)
    except grpc.RpcError as error:
        print(error.code().name, error.details(), flush=True)
