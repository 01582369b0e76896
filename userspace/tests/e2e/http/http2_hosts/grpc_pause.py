"""Calls /test.Echo/Stream at an address under a name, and says nothing for a while between two messages."""
import sys
import time

import grpc

options = [("grpc.default_authority", sys.argv[2]), ("grpc.enable_http_proxy", 0)]


def messages():
    yield b"first"
    time.sleep(4)
    yield b"second"


with grpc.insecure_channel(sys.argv[1], options) as channel:
    answers = list(channel.stream_stream("/test.Echo/Stream")(messages(), timeout=60))
assert answers == [b"east-1:first", b"east-1:second"], answers
print("all there", flush=True)
